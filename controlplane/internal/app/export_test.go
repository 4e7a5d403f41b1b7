package app

import (
	"net"
	"time"
)

// Deciding is for tests of the metric of policies that no request meets.
var Deciding = namesInForce

// AddrOf is where a door is; nil if there is none of that name.
func (a *App) AddrOf(name string) net.Addr {
	for _, l := range a.listeners {
		if l.Name() == name {
			return l.Addr()
		}
	}
	return nil
}

// Impatient shortens the time-outs of control planes that are made until the function returned is
// called.
func Impatient(header, read time.Duration) (restore func()) {
	h, r := headerTimeout, readTimeout
	headerTimeout, readTimeout = header, read
	return func() { headerTimeout, readTimeout = h, r }
}
