package state_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// unmodelled are the commands that the model never makes. Each has the test that covers it instead,
// and the reason.
var unmodelled = map[string]struct{ test, why string }{
	"concat":            {"TestConcatFaults", "a job of ranges, which has fault tables of its own"},
	"set_rebalance":     {"TestRebalanceSettings", "how full devices are has nothing to do with names and content"},
	"raise_routing":     {"TestRoutingEpoch", "routing has nothing to do with names and content"},
	"report_objects":    {"TestBadObjects", "what a bucket has beside the records is a table: the model's movers never find an object gone"},
	"revoke_cert":       {"TestRevocations", "certificates have nothing to do with names and content"},
	"hold":              {"TestHolds", "what others may not do meanwhile is a table: the model has no notion of who"},
	"end_hold":          {"TestHolds", "so is the end of it"},
	"lapse_hold":        {"TestHoldsEnd", "so is the end of it"},
	"init":              {"TestClusterTranscripts", "there is one, at the beginning of every state"},
	"add_signing_key":   {"TestClusterTranscripts", "keys have nothing to do with names and content"},
	"set_feature_level": {"TestGoldenLogs", "the model is of the present level"},
	"set_member":        {"TestAMemberHasOneDirectory", "members have nothing to do with names and content"},
	"raise_incarnation": {"TestAnotherIncarnationQuarantines", "it ends every session: there is one in the life of a history"},
	"abort_steps":       {"TestCheckpointFaults", "checkpoints have a model of their own: their states"},
	"queue_repairs":     {"TestGarbageModel", "repair has a model of its own, with devices"},
	"complete_report":   {"TestGarbageModel", "so have reports"},
	"drop_tombstones":   {"TestGarbageModel", "so have deletions"},
	"assign_intents":    {"TestGarbageModel", "so have intents"},
	"begin_repair":      {"TestGarbageModel", "repair has a model of its own, with devices"},
	"commit_repair":     {"TestGarbageModel", "repair has a model of its own, with devices"},
	"end_intents":       {"TestGarbageModel", "so have intents"},
	"report_bad_chunks": {"TestGarbageModel", "so have reports"},
	"deleted_chunks":    {"TestGarbageModel", "so have deletions"},
	"adopt_chunks":      {"TestAdoption", "the model's state is never restored"},
	"drop_chunks":       {"TestDropChunks", "nothing is unexplained in the model"},
	"settle_chunks":     {"TestRandomMemory", "what is in memory has a model of its own, with reboots"},
	"raise_levels":      {"TestRandomMemory", "so have the levels of files"},
	"register_host":     {"TestClusterTranscripts", "the model's hosts are there when it begins"},
	"set_host_state":    {"TestDrainedHostIsRemoved", "hosts have nothing to do with names and content"},
	"set_maintenance":   {"TestMaintenance", "hosts have nothing to do with names and content"},
	"set_device_state":  {"TestGarbageModel", "repair has a model of its own, with devices"},
	"judge_steps":       {"TestRandomStepLosses", "checkpoints that lose bytes have a model of their own"},
	"open_run":          {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"begin_step":        {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"seal_part":         {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"commit_step":       {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"abort_step":        {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"resolve_step":      {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"remove_step":       {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"lease_step":        {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
	"release_step":      {"TestCheckpointTranscripts", "checkpoints have scripts of their own"},
}

// seldom are movers' commands that the model makes, but that its short form may miss.
var seldom = map[string]string{"commit_evict": "TestTierFaults", "commit_stage": "TestTierFaults", "move_object": "TestTierFaults",
	"renew_job": "TestClusterTranscripts"}

// isCommand reports whether the state machine applies a request as a command. Other requests are
// reads, or the leader answers them from memory.
func isCommand(t *testing.T, op protoreflect.FieldDescriptor) bool {
	t.Helper()
	b := newCluster(t, 1)
	c := b.open(nil)
	req := &wire.MetaRequest{Session: c.id, Number: 1, AckedBelow: 1}
	req.ProtoReflect().Set(op, req.ProtoReflect().NewField(op))
	return kind(b.as(c.node, "admin", req)) != moraine.Unimplemented.Error()
}

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
	for fields, i := (*wire.MetaRequest)(nil).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields(), 0; i < fields.Len(); i++ {
		if f := fields.Get(i); isCommand(t, f) {
			known[string(f.Name())] = true
		}
	}
	for name, test := range seldom {
		if !known[name] || !tests[test] {
			t.Errorf("%s is no command, or %s no test of this package", name, test)
		}
		delete(known, name)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		why, listed := unmodelled[name]
		switch {
		case listed && made[name] > 0:
			t.Errorf("%s is in the model by now", name)
		case listed && !tests[why.test]:
			t.Errorf("%s is said to be in %s, which is no test of this package", name, why.test)
		case !listed && made[name] == 0:
			t.Errorf("%s is neither among the random commands nor listed with a reason", name)
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
