package main

import (
	"context"
	"net"
	"os"
)

// init has this program ask the name server at $NAME_SERVER alone, over UDP.
func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", os.Getenv("NAME_SERVER"))
	}}
}
