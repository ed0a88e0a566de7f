package metadatacmd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// People see commands that change the state before reads, and how many lines they do not
// see.
func TestMetadataStatusShowsMutationsFirst(t *testing.T) {
	r := metadataReport{Leader: "m1"}
	for n := range 15 {
		r.Commands = append(r.Commands, commandCount{Name: fmt.Sprintf("read_%02d", n), Count: uint64(1000 - n), Reads: true})
	}
	r.Commands = append(r.Commands, commandCount{Name: "create", Count: 9}, commandCount{Name: "remove", Count: 8})
	var out bytes.Buffer
	env := &cli.Env{Out: &out, Err: &out}
	printMetadata(env, r)
	said := out.String()
	last := 0
	for _, want := range []string{"APPLY P50 / P99", "create", "remove", "read_00", "read_09", "… 5 more (--json has all)"} {
		at := strings.Index(strings.ToUpper(said), strings.ToUpper(want))
		if at < last {
			t.Errorf("%q is not there, or not in its place:\n%s", want, said)
		}
		last = max(at, last)
	}
	if strings.Contains(said, "read_10") {
		t.Errorf("more than %d requests:\n%s", shownCommands, said)
	}
	if r.Commands[0].Name != "read_00" {
		t.Error("the report was put in another order")
	}
}
