package bucketstore_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/sharedtest"
)

// A number is seen by all VMs of the same name space, and by no other.
func TestNumber(t *testing.T) {
	var shared sharedtest.Data
	a := bucketstore.New(&shared, [4]byte{'w', '1'}, 1024, 0)
	b := bucketstore.New(&shared, [4]byte{'w', '1'}, 1024, 0)
	other := bucketstore.New(&shared, [4]byte{'w', '2'}, 1024, 0)
	if n := a.Number('n'); n != 0 {
		t.Errorf("%d before it was set", n)
	}
	a.SetNumber('n', 3)
	b.SetNumber('n', 1<<40)
	if a.Number('n') != 1<<40 || b.Number('n') != 1<<40 || a.Number('m') != 0 || other.Number('n') != 0 {
		t.Errorf("%d %d %d %d", a.Number('n'), b.Number('n'), a.Number('m'), other.Number('n'))
	}
	shared.Put([]byte("w1\x00\x00n"), []byte("damaged"))
	if n := a.Number('n'); n != 0 {
		t.Errorf("%d from damaged bytes", n)
	}
	if a.SetNumber('n', 4); a.Number('n') != 4 {
		t.Errorf("damaged bytes were not replaced: %d", a.Number('n'))
	}
}
