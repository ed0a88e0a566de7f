package metadatacmd

import (
	"strings"
	"testing"
)

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
