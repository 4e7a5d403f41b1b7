package bucketstore_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/quota"
)

// measured is shared data that keeps the size of the last value stored.
type measured struct {
	shareddatatest.Data
	size int
}

func (m *measured) PutIfAbsent(key, value []byte) bool {
	m.size = len(value)
	return m.Data.PutIfAbsent(key, value)
}

func (m *measured) CompareAndSwap(key, value []byte, cas uint32) bool {
	m.size = len(value)
	return m.Data.CompareAndSwap(key, value, cas)
}

// bytesOf returns the bytes that two buckets in one slot take more than one bucket: a bucket of 100
// a minute, all used evenly.
func bytesOf(t *testing.T, spend func(st *bucketstore.Store, key byte, now quota.Instant)) int {
	t.Helper()
	data := &measured{}
	st := bucketstore.New(data, space, 8, 0)
	var sizes [2]int
	for i := range sizes {
		for n := range 100 {
			spend(st, byte(i), quota.Instant(1<<48)+quota.Instant(n)*600_000)
		}
		sizes[i] = data.size
	}
	return sizes[1] - sizes[0]
}

// The page on choosing says how many bytes a bucket takes in an Envoy. Its second column is held by
// the tests of the store.
func TestThePageHasTheSizeOfABucketInEnvoy(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/choose/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	hundred, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{"`token_bucket`, `leaky_bucket`": bytesOf(t,
		func(st *bucketstore.Store, k byte, now quota.Instant) {
			err := st.Update(bucketstore.Local, key(0, k), now, change(func(e *bucketstore.Entry) bool {
				e.Params = hundred
				e.State, _ = hundred.Take(e.State, now, 1)
				return true
			}))
			if err != nil {
				t.Fatal(err)
			}
		})}
	for _, a := range algorithms {
		w, err := quota.NewWindows(a, 100, quota.Minute, quota.DefaultSubwindows)
		if err != nil {
			t.Fatal(err)
		}
		rows["`"+a.String()+"`"] = bytesOf(t, func(st *bucketstore.Store, k byte, now quota.Instant) {
			if _, err := takeWindow(st, w, key(0, k), now, 1); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, size := range rows {
		if want := fmt.Sprintf("| %s | %d |", name, size); !strings.Contains(string(page), want) {
			t.Errorf("docs/choose/choosing.md should have a row that begins with %s", want)
		}
	}
}
