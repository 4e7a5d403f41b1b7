package habits

import (
	"slices"
	"testing"
)

func TestTheHabitsAreFoundAndHonestEnglishIsNot(t *testing.T) {
	for _, c := range []struct{ text, habit string }{
		{"It keeps what the bucket holds.", "what"},
		{"What came meanwhile waits.", "what"},
		{"What does the bucket hold?", ""},
		{"What happens when it is full? Nothing.", ""},
		{"It keeps `what it` holds.", ""},
		{"It serves those that wait.", "those"},
		{"It is the one of the last call.", "those"},
		{"It is one of three states.", ""},
		{"Seq is that of the last claim.", "that-of"},
		{"It admits as many as may wait.", "so-many"},
		{"It waits so long.", "so-many"},
		{"It stays as long as the lease.", ""},
		{"It asks for another.", "bare-one"},
		{"It asks for another, then ends.", "bare-one"},
		{"It asks for another bucket.", ""},
		{"The wait goes by the limit.", "goes-by"},
		{"It has the store decide all.", "has-do"},
		{"It has the same bucket as before.", ""},
		{"For others", ""}, // no sentence: two words
	} {
		var got []string
		for _, sentence := range Sentences(c.text) {
			for _, h := range Counted {
				if len(h.Find(sentence)) > 0 {
					got = append(got, h.Name)
				}
			}
		}
		if c.habit == "" && got != nil || c.habit != "" && !slices.Equal(got, []string{c.habit}) {
			t.Errorf("%q: %q, want %q", c.text, got, c.habit)
		}
	}
}

func TestSentencesAreSplit(t *testing.T) {
	got := Sentences("One goes here. Two goes\nhere, with 1.5 of it!\n\tcode is no prose\n\n" +
		"Three, without a stop\n- an item is one\n")
	want := []string{"One goes here.", "Two goes here, with 1.5 of it!", "Three, without a stop", "an item is one"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
