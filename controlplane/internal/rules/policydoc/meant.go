package policydoc

import (
	"regexp"
	"strings"
)

// Words of other programs, and their meaning here. Without this list the word with the most similar
// letters would be guessed, and off is more similar to on than enforce is.
var (
	aShare   = regexp.MustCompile(`^([1-9][0-9]?)%?$`)
	inLimit  = regexp.MustCompile(`\blimit(?:s\.[^.\[]+)?(?:\[\d+\])?\.([a-z_]+)$`)
	aHeader  = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
	meanings = map[string]map[string]string{
		"mode": {
			"global": "leased", "distributed": "leased", "shared": "leased", "central": "leased", "redis": "leased",
			"exact": "strict", "sync": "strict", "async": "optimistic", "eventual": "optimistic", "memory": "local",
		},
		"enforcement": {
			"on": "enforce", "true": "enforce", "enabled": "enforce", "active": "enforce", "enforced": "enforce",
			"false": "off", "disabled": "off", "none": "off", "dry_run": "shadow", "dry-run": "shadow",
			"log": "shadow", "monitor": "shadow", "report": "shadow",
		},
		"partition": {
			"ip": "client_ip", "address": "client_ip", "remote_addr": "client_ip", "remote_address": "client_ip",
			"remote_ip": "client_ip", "user": "consumer", "user_id": "consumer", "key": "consumer",
			"api_key": "consumer", "customer": "consumer",
		},
	}
)

// meantWord returns the word of the policy language for another word in lower case; empty if none
// is known.
func meantWord(path, word string) string {
	field, _, _ := strings.Cut(path[strings.LastIndexByte(path, '.')+1:], "[")
	switch share := aShare.FindStringSubmatch(word); {
	case meanings[field][word] != "":
		return meanings[field][word]
	case field == "enforcement" && share != nil:
		return "{enforce: " + share[1] + "}"
	}
	return ""
}

// headerFor returns the part of a partition key for a word like x-api-key; empty for another word.
func headerFor(path, word string) string {
	if strings.Contains(path[strings.LastIndexByte(path, '.')+1:], "partition[") && aHeader.MatchString(word) {
		return "header:" + word
	}
	return ""
}

// sameAs guesses the field of a limit for an unknown field; empty if none is known.
func sameAs(path string) string {
	field := inLimit.FindStringSubmatch(path)
	if field == nil {
		return ""
	}
	switch field[1] {
	case "rate", "requests", "count":
		return ": did you mean quota?"
	case "per", "period", "interval", "duration":
		return ": did you mean window?"
	}
	return ""
}
