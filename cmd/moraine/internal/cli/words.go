package cli

import (
	"fmt"
	"strings"
)

// YesNo writes a bool, so that a no is seen.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

// CountOf writes a number of things: 1 file, 2 files.
func CountOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Are counts things: "1 host", "2 hosts".
func Are(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Some names the first of many.
func Some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
