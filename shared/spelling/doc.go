// Package spelling gives what requests say one spelling, where servers read several as the same: a
// client that spells its key or its path in another way is still the same caller at the same place.
// docs/choose/identity.md explains the rules. testdata/spellings.txt has them as rows, which tests
// hold.
package spelling
