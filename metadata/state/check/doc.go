// Package check verifies all records of a partition against each other: reference
// counts, link counts, indexes, counters and the running sum. It changes nothing.
//
// Check runs one pass after the other over the tables, collects what they say of
// inodes, tables and stripes, and returns each contradiction in words.
package check
