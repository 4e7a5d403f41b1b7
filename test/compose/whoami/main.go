// Command whoami answers each request with the request, like traefik/whoami.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
)

func main() {
	port := flag.Int("port", 80, "listen at this port")
	flag.Parse()
	err := http.ListenAndServe(fmt.Sprintf(":%d", *port), http.HandlerFunc(answer))
	fmt.Fprintln(os.Stderr, "whoami:", err)
	os.Exit(1)
}

func answer(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "RemoteAddr: %s\n%s %s %s\nHost: %s\n", r.RemoteAddr, r.Method, r.URL.RequestURI(), r.Proto, r.Host)
	_ = r.Header.Write(w) // A client that has gone needs no answer.
}
