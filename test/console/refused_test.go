package console

import (
	"net/http"
	"strings"
	"testing"
)

// An address whose calls are refused is no node: the number of known Envoys does not change.
func TestRefusedAddressesAreNoNodes(t *testing.T) {
	r, err := http.NewRequest(http.MethodGet, stack.Console+"/node/v1/snapshot", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer a-token-that-is-none")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	p := open(t, stack.Token)
	p.sees("calls from 1 address refused: no limit is sent there")
	p.until("counts one node", func() bool { return strings.Contains(p.text(), "1 of 1") })
	p.at("nodes")
	p.sees("1 address refused. Version")
}
