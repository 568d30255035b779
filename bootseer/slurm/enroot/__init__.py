"""bootseer-enroot: containers of Enroot that are mounted instead of unpacked."""
