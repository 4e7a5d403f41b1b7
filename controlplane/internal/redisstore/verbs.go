package redisstore

import (
	"fmt"
	"strings"

	"github.com/weir-proxy/weir/shared/wire"
)

// What the script that grants does with a bucket is a verb: the kind of its item, or to charge the
// item's other ledger, the main one or the draft's. Beside it may stand that the bucket is of a
// window algorithm, and that the next one belongs to the same request.
const (
	chargesMain wire.ItemKind = iota + wire.KindClaim + 1
	chargesDraft

	ofWindows wire.ItemKind = 32
	joinsNext wire.ItemKind = 64
)

// verbNames are the names of the verbs, and of what may stand beside one, in the script.
var verbNames = []struct {
	name string
	verb wire.ItemKind
}{
	{"ASK", wire.KindAsk}, {"REPORT", wire.KindReport}, {"SETTLE", wire.KindSettle}, {"RETURN", wire.KindReturn},
	{"CLAIM", wire.KindClaim}, {"CHARGE", chargesMain}, {"CHARGE_DRAFT", chargesDraft},
	{"WINDOWS", ofWindows}, {"JOINED", joinsNext},
}

// verbsScript returns the start of the script, which names the verbs.
func verbsScript() string {
	var b strings.Builder
	for _, v := range verbNames {
		fmt.Fprintf(&b, "local %s = %d\n", v.name, v.verb)
	}
	return b.String()
}
