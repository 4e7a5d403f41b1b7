# Takes the place of traefik/whoami: a program that answers with the request.
FROM scratch
COPY whoami /whoami
EXPOSE 80
ENTRYPOINT ["/whoami"]
