package wire_test

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/wire"
)

var consumers = wire.Consumers{
	Format: 1, Revision: 1_790_000_000_123, Complete: true,
	Items: []wire.Consumer{{Key: [16]byte{1, 2, 3}, Tier: []byte("premium")}, {Key: [16]byte{0xff}, Tier: []byte{}}},
}

func TestConsumersReadBack(t *testing.T) {
	message := wire.AppendConsumers(nil, consumers)
	question := wire.AppendQuestion(nil, [][16]byte{{1, 2, 3}, {0xff}})
	for name, got := range map[string][]byte{"consumers": message, "consumers_question": question} {
		file := "testdata/" + name + ".hex"
		if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || hex.EncodeToString(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s changed: raise its format version and keep reading the old one (%v)\ngot  %x\nwant %s", name, err, got, want)
		}
	}
	var back wire.Consumers
	if err := wire.DecodeConsumers(message, &back); err != nil || !reflect.DeepEqual(back, consumers) || !wire.IsConsumers(message) {
		t.Errorf("%+v: %v", back, err)
	}
	if keys, err := wire.DecodeQuestion(question); err != nil || len(keys) != 2 || keys[1] != [16]byte{0xff} {
		t.Errorf("%v: %v", keys, err)
	}
	if wire.IsConsumers(snapshot(t)) {
		t.Error("a snapshot is taken for consumers")
	}
}

func TestDamagedConsumersAreRefused(t *testing.T) {
	var back wire.Consumers
	message, question := wire.AppendConsumers(nil, consumers), wire.AppendQuestion(nil, [][16]byte{{1}})
	for i := range message {
		if wire.DecodeConsumers(message[:i], &back) == nil {
			t.Errorf("cut at %d it was accepted", i)
		}
	}
	for i := range question {
		if _, err := wire.DecodeQuestion(question[:i]); err == nil {
			t.Errorf("a question cut at %d was accepted", i)
		}
	}
	for name, m := range map[string]wire.Consumers{
		"too many":        {Items: make([]wire.Consumer, wire.MaxConsumers+1)},
		"too long a tier": {Items: []wire.Consumer{{Tier: make([]byte, 64)}}},
	} {
		if wire.DecodeConsumers(wire.AppendConsumers(nil, m), &back) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, n := range []int{0, wire.MaxQuestions + 1} {
		if _, err := wire.DecodeQuestion(wire.AppendQuestion(nil, make([][16]byte, n))); err == nil {
			t.Errorf("a question about %d was accepted", n)
		}
	}
}

func FuzzConsumers(f *testing.F) {
	f.Add(wire.AppendConsumers(nil, consumers))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m wire.Consumers
		if wire.DecodeConsumers(b, &m) == nil && len(m.Items) > wire.MaxConsumers {
			t.Errorf("%d items", len(m.Items))
		}
		_, _ = wire.DecodeQuestion(b)
	})
}
