# Not built where it was written: no container engine was available. The tag of the base and the packages of Ubuntu 24.04
# are all that it relies on, besides `uv sync`; torch's wheels bring their own CUDA libraries.
#
#   docker build -t attention-optimizer-bench .
#   docker run --rm --gpus all -v "$PWD/out:/out" attention-optimizer-bench quickstart --store /out/runs -o /out/plot.png
FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-pip git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /bench
COPY . .
RUN pip install --no-cache-dir --break-system-packages uv && uv sync --no-dev
ENV PATH=/bench/.venv/bin:$PATH
ENTRYPOINT ["bench"]
CMD ["quickstart"]
