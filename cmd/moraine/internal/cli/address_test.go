package cli

import (
	"strings"
	"testing"
)

// A command refuses what cannot be the address of a server before it writes the address
// anywhere. It never guesses a port.
func TestServerAddress(t *testing.T) {
	for _, good := range []string{"host4:7400", "host-4.example.com:7400", "10.0.0.4:7400", "[::1]:7400", "[fe80::1]:65535", "unix:/run/m4"} {
		if got, err := ServerAddress(good); err != nil || got != good {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", "nohost", "::bad::", "host:", "host:0", "host:65536", "host:http", ":7400", "a b:7400", "[bad::x]:7400", "http://h:7400", "unix:"} {
		if _, err := ServerAddress(bad); err == nil || !strings.Contains(err.Error(), "write HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
