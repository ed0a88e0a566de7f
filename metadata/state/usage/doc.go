// Package usage counts what is below each directory, and enforces quotas. No
// handler counts: at the end of each command ApplyUsage compares the records of
// the inodes that the command wrote with what they were before, and adds the
// difference to each directory up to the root. A recount builds a second column
// of counts beside the one in use.
package usage
