package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain removes the settings of the user. In a shell that names a cluster, as the README
// says, command lines that must fail would succeed.
func TestMain(m *testing.M) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "MORAINE_") && !strings.HasPrefix(name, "MORAINE_TEST_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}
