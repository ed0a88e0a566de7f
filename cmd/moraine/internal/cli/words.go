package cli

import (
	"fmt"
	"strings"
)

// YesNo writes a bool. "NO" is in capitals, so that people notice it.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

// CountOf writes a number of things whose plural ends in s: "1 file", "2 files".
func CountOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Are writes a number of things, with the words for one and for many: "1 host has",
// "2 hosts have".
func Are(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Some lists the first names, and says how many more there are.
func Some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
