package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain runs the tests without the settings of the user: in a shell that names a
// cluster, as the README says, wrong use would be right.
func TestMain(m *testing.M) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "MORAINE_") && !strings.HasPrefix(name, "MORAINE_TEST_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}
