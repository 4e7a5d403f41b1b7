package consumers

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Encode is a record as stores keep it, without its revision, which the store itself puts before it.
func (r Record) Encode() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

// Decode reads what a store keeps: the revision, a space, and what Encode made.
func Decode(stored string) (r Record, err error) {
	revision, text, _ := strings.Cut(stored, " ")
	if err = json.Unmarshal([]byte(text), &r); err == nil {
		r.Revision, err = strconv.ParseUint(revision, 10, 64)
	}
	if err != nil {
		return Record{}, fmt.Errorf("the stored consumer is damaged: %w", err)
	}
	return r, nil
}
