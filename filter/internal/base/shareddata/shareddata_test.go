package shareddata_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
)

// A number is seen by all VMs of the same name space, and by no other.
func TestNumber(t *testing.T) {
	var data shareddatatest.Data
	one, two := shareddata.Space{'w', '1'}, shareddata.Space{'w', '2'}
	a := shareddata.NewNumber(&data, one, shareddata.Nodes)
	b := shareddata.NewNumber(&data, one, shareddata.Nodes)
	others := []shareddata.Number{
		shareddata.NewNumber(&data, two, shareddata.Nodes), shareddata.NewNumber(&data, one, shareddata.Leader),
	}
	if n := a.Load(); n != 0 {
		t.Errorf("%d before it was set", n)
	}
	a.Store(3)
	b.Store(1 << 40)
	if a.Load() != 1<<40 || b.Load() != 1<<40 || others[0].Load() != 0 || others[1].Load() != 0 {
		t.Errorf("%d %d %d %d", a.Load(), b.Load(), others[0].Load(), others[1].Load())
	}
	data.Put([]byte("w1\x00\x00n"), []byte("damaged"))
	if n := a.Load(); n != 0 {
		t.Errorf("%d from damaged bytes", n)
	}
	a.Store(4)
	if a.Load() != 4 {
		t.Errorf("damaged bytes were not replaced: %d", a.Load())
	}
}

// The VMs agree on the first VM's value, if it has the length that the other VMs expect.
func TestAgree(t *testing.T) {
	var data shareddatatest.Data
	key := shareddata.Space{}.Key(shareddata.Process)
	for _, c := range []struct{ offer, want string }{{"one", "one"}, {"two", "one"}, {"three", "three"}} {
		value := []byte(c.offer)
		shareddata.Agree(&data, key, value)
		if string(value) != c.want {
			t.Errorf("%q was offered: %q, want %q", c.offer, value, c.want)
		}
	}
}

// A VM takes each version once, its own never, and a version never without its message or a newer
// message.
func TestDocument(t *testing.T) {
	var data shareddatatest.Data
	publisher := shareddata.NewDocument(&data, shareddata.Space{}, shareddata.EnforcementVersion,
		shareddata.Enforcement)
	reader := publisher
	if _, _, news := reader.News(); news {
		t.Error("there are news of nothing")
	}
	for _, text := range []string{"first", "second", ""} {
		v := shareddata.Version{byte(len(text)), 1}
		looking := false
		data.Before = func(op string, key []byte) {
			if looking {
				return
			}
			looking = true
			defer func() { looking = false }()
			if got, message, news := reader.News(); op == "set" && news && got == v && string(message) != text {
				t.Errorf("the version of %q is seen with %q", text, message)
			}
		}
		publisher.Publish(v, []byte(text))
		publisher.Take(v)
		data.Before = nil
		got, message, news := reader.News()
		if !news || got != v || string(message) != text {
			t.Errorf("%v, %q, %v: want %q", got, message, news, text)
		}
		reader.Take(got)
		if _, _, news := reader.News(); news {
			t.Errorf("%q is news twice", text)
		}
		if _, _, news := publisher.News(); news {
			t.Errorf("%q is news to its publisher", text)
		}
	}
}

// Two VMs publish at once, in every order of their steps. In the end the message belongs to the
// version, or the last VM to publish knows that it does not.
func TestTwoPublishersAtOnce(t *testing.T) {
	for second := range 16 { // Before which operation of the first VM the second one publishes.
		for pause := range 16 { // Before which of its own operations the second one lets the first go on.
			publishAtOnce(t, second, pause)
		}
	}
}

// publishAtOnce runs two publishers as coroutines that change at two places.
func publishAtOnce(t *testing.T, second, pause int) {
	var data shareddatatest.Data
	doc := shareddata.NewDocument(&data, shareddata.Space{}, shareddata.EnforcementVersion, shareddata.Enforcement)
	one, two := doc, doc
	resume, paused := make(chan bool), make(chan bool)
	ended := make(chan bool)
	var stands [2]bool
	own, others, inTwo := 0, 0, false
	data.Before = func(string, []byte) {
		switch {
		case inTwo:
			if others == pause {
				others++
				inTwo = false
				paused <- true
				<-resume
				inTwo = true
				return
			}
			others++
		case own == second:
			own++
			inTwo = true
			go func() {
				stands[1] = two.Publish(shareddata.Version{2}, []byte("two"))
				inTwo = false
				close(ended)
			}()
			select {
			case <-paused:
			case <-ended:
			}
		default:
			own++
		}
	}
	stands[0] = one.Publish(shareddata.Version{1}, []byte("one"))
	if own <= second {
		data.Before = nil
		return // The first has fewer operations.
	}
	if others > pause {
		resume <- true
		<-ended
	}
	data.Before = nil
	v, message, _ := doc.News()
	want := map[byte]string{1: "one", 2: "two"}[v[0]]
	if string(message) != want && stands[v[0]-1] {
		t.Errorf("second %d, pause %d: version %d over %q, which its publisher does not know",
			second, pause, v[0], message)
	}
	if stands != [2]bool{true, true} && string(message) == want && !stands[v[0]-1] {
		t.Errorf("second %d, pause %d: version %d is over its own message, and its publisher publishes again",
			second, pause, v[0])
	}
}
