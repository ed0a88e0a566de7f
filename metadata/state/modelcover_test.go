package state_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/optest"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// unmodelled are the leader's own commands that the model never makes. Each has the test that covers
// it instead, and the reason. Package optest has the requests.
var unmodelled = map[string]struct{ test, why string }{
	"init":              {"TestClusterTranscripts", "there is one, at the beginning of every state"},
	"add_signing_key":   {"TestClusterTranscripts", "keys have nothing to do with names and content"},
	"set_feature_level": {"TestGoldenLogs", "the model is of the present level"},
	"set_member":        {"TestAMemberHasOneDirectory", "members have nothing to do with names and content"},
	"raise_incarnation": {"TestAnotherIncarnationQuarantines", "it ends every session: there is one in the life of a history"},
	"abort_steps":       {"TestCheckpointFaults", "checkpoints have a model of their own: their states"},
	"queue_repairs":     {"TestGarbageModel", "repair has a model of its own, with devices"},
	"complete_report":   {"TestGarbageModel", "repair has a model of its own, with devices"},
	"drop_tombstones":   {"TestGarbageModel", "repair has a model of its own, with devices"},
	"assign_intents":    {"TestGarbageModel", "repair has a model of its own, with devices"},
	"adopt_chunks":      {"TestAdoption", "the model's state is never restored"},
	"retain_steps":      {"TestRandomRetention", "checkpoints have models of their own: their states"},
	"raise_levels":      {"TestRandomMemory", "what is in memory has a model of its own, with reboots"},
	"end_lingers":       {"TestRandomOrphans", "sessions of the model have no files open"},
	"judge_steps":       {"TestRandomStepLosses", "checkpoints that lose bytes have a model of their own"},
}

// coveredBy returns the test that covers a command which the model never makes; "" if there is
// none.
func coveredBy(name string) string {
	if r := optest.Requests[name]; r.Test != "" {
		return r.Test
	}
	return unmodelled[name].test
}

// seldom are movers' commands that the model makes, but that its short form may miss.
var seldom = map[string]string{"commit_evict": "TestTierFaults", "commit_stage": "TestTierFaults", "move_object": "TestTierFaults",
	"renew_job": "TestClusterTranscripts"}

// opOf is the name of a command: of the request in it, or of the leader's own.
func opOf(cmd *statepb.Command) string {
	if req := cmd.GetRequest(); req != nil {
		return string(wire.Op(req).Name())
	}
	return string(wire.Op(cmd).Name())
}

// holdCommands checks that each command either was made by the model or is listed with a reason,
// not both.
func holdCommands(t *testing.T, made map[string]int) {
	t.Helper()
	tests := testsHere(t)
	known := map[string]bool{}
	for fields, i := (*statepb.Command)(nil).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields(), 0; i < fields.Len(); i++ {
		if f := fields.Get(i); f.Name() != "request" {
			known[string(f.Name())] = true
		}
	}
	for _, o := range ops.All() {
		if o.Effect == wire.Operation_COMMAND {
			known[o.Name] = true
		} else if optest.Requests[o.Name].Test != "" {
			t.Errorf("%s is no command, and the model could not make it", o.Name)
		}
	}
	for name, test := range seldom {
		if !known[name] || !tests[test] {
			t.Errorf("%s is no command, or %s no test of this package", name, test)
		}
		delete(known, name)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		test := coveredBy(name)
		switch {
		case test != "" && made[name] > 0:
			t.Errorf("%s is in the model by now", name)
		case test != "" && !tests[test]:
			t.Errorf("%s is said to be in %s, which is no test of this package", name, test)
		case test == "" && made[name] == 0:
			t.Errorf("%s is not among the random commands: say in internal/optest (a request) or in unmodelled which test covers it, and why", name)
		}
	}
	for name := range unmodelled {
		if !known[name] && made[name] == 0 {
			t.Errorf("%s is not a command any more", name)
		}
	}
}

// testsHere returns the names of this package's tests.
func testsHere(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			if rest, ok := strings.CutPrefix(line, "func Test"); ok {
				name, _, _ := strings.Cut(rest, "(")
				out["Test"+name] = true
			}
		}
	}
	return out
}
