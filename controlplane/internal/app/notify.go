package app

import (
	"fmt"
	"net"
	"os"
)

// notifySystemd tells systemd that the control plane listens, if a unit of the type notify has
// started it. `systemctl start` waits for that.
func notifySystemd() error {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil
	}
	socket, err := net.Dial("unixgram", address)
	if err != nil {
		return fmt.Errorf("cannot tell systemd that weir listens: %w", err)
	}
	defer socket.Close()
	if _, err := socket.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("cannot tell systemd that weir listens: %w", err)
	}
	return nil
}
