# The demo in a container, on a CPU: docker build -t ltr . && docker run --rm ltr
FROM python:3.11-slim

RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1

WORKDIR /ltr
# torch first and alone, and of the index for CPUs: the one of PyPI brings gigabytes for GPUs. A layer of its own, so that
# another line of code does not install it again.
COPY constraints.txt ./
RUN python3 -m venv .venv && .venv/bin/pip install --index-url https://download.pytorch.org/whl/cpu $(grep '^torch==' constraints.txt)

COPY . .
RUN make env
CMD ["make", "demo"]
