# Takes the place of alpine: BusyBox, and the two commands that the Dockerfile uses and Debian's BusyBox lacks.
FROM scratch AS debian
ADD debian.tar /

FROM scratch
COPY --from=debian /bin/busybox /bin/busybox
COPY --from=debian /etc/passwd /etc/group /etc/
RUN ["/bin/busybox", "sh", "-c", "/bin/busybox --install -s /bin && /bin/mkdir -m 1777 /tmp"]
COPY adduser install /usr/local/bin/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["/bin/sh"]
