# An image with all libraries and tools that `make run` and `make test` need. Both build the programs in the container.
#   docker build -t coat . && docker run --gpus all coat make run && docker run --gpus all coat make test
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04
WORKDIR /coat
COPY . .
RUN scripts/setup.sh --all
