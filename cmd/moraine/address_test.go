package main

import (
	"strings"
	"testing"
)

// A command refuses what cannot be the address of a server before it writes the address
// anywhere. It never guesses a port.
func TestServerAddress(t *testing.T) {
	for _, good := range []string{"host4:7400", "host-4.example.com:7400", "10.0.0.4:7400", "[::1]:7400", "[fe80::1]:65535", "unix:/run/m4"} {
		if got, err := serverAddress(good); err != nil || got != good {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", "nohost", "::bad::", "host:", "host:0", "host:65536", "host:http", ":7400", "a b:7400", "[bad::x]:7400", "http://h:7400", "unix:"} {
		if _, err := serverAddress(bad); err == nil || !strings.Contains(err.Error(), "write HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A member that a command adds has an id and the address of a server.
func TestMemberAddress(t *testing.T) {
	for _, bad := range []string{"m4", "m4=", "=host:7400", "m4=nohost", "m5=::bad::"} {
		if _, _, err := memberArg(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := (&offlineOptions{id: "m1", data: "d", address: "nonsense"}).config(); err == nil {
		t.Error("nonsense is taken")
	}
}

// The result of a removal says which losses the remaining servers survive.
func TestRedundancy(t *testing.T) {
	for voters, says := range map[int]string{1: "nothing may be lost", 2: "none may be away", 3: "1 of 3", 4: "1 of 4", 5: "2 of 5"} {
		if s := redundancy(voters); !strings.HasPrefix(s, says) {
			t.Errorf("%d: %s", voters, s)
		}
	}
}
