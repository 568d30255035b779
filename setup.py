from setuptools import setup

# The one thing pyproject.toml cannot say: the C extension is built by cffi.
setup(cffi_modules=["c_ext/build_io.py:ffi"])
