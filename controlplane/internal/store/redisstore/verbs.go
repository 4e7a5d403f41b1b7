package redisstore

import (
	"fmt"
	"strings"

	"github.com/weir-proxy/weir/shared/wire"
)

// A verb is the grant script's act on a bucket: the kind of its item, or a charge of the item's
// other ledger, the main ledger or the draft's. Two flags may be added: the bucket is of a
// window algorithm, and the next bucket belongs to the same request.
const (
	chargesMain wire.ItemKind = iota + wire.KindClaim + 1
	chargesDraft

	ofWindows wire.ItemKind = 32
	joinsNext wire.ItemKind = 64
)

// verbNames are the names of the verbs and flags in the script.
var verbNames = []struct {
	name string
	verb wire.ItemKind
}{
	{"ASK", wire.KindAsk}, {"REPORT", wire.KindReport}, {"SETTLE", wire.KindSettle}, {"RETURN", wire.KindReturn},
	{"CLAIM", wire.KindClaim}, {"CHARGE", chargesMain}, {"CHARGE_DRAFT", chargesDraft},
	{"WINDOWS", ofWindows}, {"JOINED", joinsNext},
}

// verbsScript returns the part of the script that defines the verbs.
func verbsScript() string {
	var b strings.Builder
	for _, v := range verbNames {
		fmt.Fprintf(&b, "local %s = %d\n", v.name, v.verb)
	}
	return b.String()
}
