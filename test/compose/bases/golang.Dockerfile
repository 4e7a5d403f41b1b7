# Takes the place of golang: Debian with git and a C compiler, and the Go of this machine.
FROM scratch
ADD golang.tar /
COPY go /usr/local/go
# With the authorities of this machine: a proxy in front of it may have its own.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV GOPATH=/go GOTOOLCHAIN=local PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /go
CMD ["bash"]
