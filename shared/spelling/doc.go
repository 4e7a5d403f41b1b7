// Package spelling gives what requests say one spelling, where servers read several as the same: a
// client that spells its key or its path in another way is still the same caller at the same place.
// docs/identity.md has the table, testdata/spellings.txt of package match the tests.
package spelling
