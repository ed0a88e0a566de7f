// Package lint checks the shape of the source tree, such as which package may
// import which. It has no code, only tests. One path through it: TestArrows reads
// the imports of each file and looks them up in the table arrows.
package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/morainefs/moraine"

// arrow allows what matches From to import what matches any of To. Both are
// folders below the module; a folder stands for all below it, "." for the root
// package alone, "*" for all but integration, which is for tests alone.
type arrow struct {
	From string
	To   []string
}

// arrows is the whole table. Imports point down. A folder may always import itself
// and everything below it, the root package, and internal/. The most specific From
// decides.
var arrows = []arrow{
	{"cmd", []string{"*"}},
	{"cmd/moraine/internal/cli", []string{"client", "transport"}},
	{"cmd/moraine/internal/settings", []string{"cmd/moraine/internal/cli"}},
	{"cmd/moraine/internal/view", []string{"client", "cmd/moraine/internal/cli", "transport"}},
	{"cmd/moraine/internal/serve", []string{"client", "cmd/moraine/internal/cli", "cmd/moraine/internal/view", "transport"}},
	{"examples", []string{"client"}},
	{"integration", []string{"*"}},
	{"agent", []string{"client"}},
	{"fuse", []string{"client", "transport"}},
	{"s3", []string{"client", "transport"}},
	{"mover", []string{"client", "transport", "tiers/object"}},
	{"client", []string{"transport", "internal/erasure"}},
	{"client/internal/metrics", nil},
	{"client/internal/retry", nil},
	{"client/internal/nodecache", []string{"client/internal/metrics"}},
	{"client/internal/delegation", []string{"client/internal/metrics", "client/internal/retry", "transport"}},
	{"client/internal/session", []string{"client/internal/delegation", "client/internal/metrics", "client/internal/retry", "transport"}},
	{"client/internal/filelocks", []string{"client/internal/retry", "client/internal/session", "transport"}},
	{"client/internal/stripeio", []string{"client/internal/metrics", "client/internal/retry", "client/internal/session", "transport", "internal/erasure"}},
	{"chunkserver", []string{"transport", "tiers"}},
	{"metadata", []string{"transport"}},
	{"metadata/state", []string{"transport/wire"}},
	{"metadata/state/record", []string{"metadata/state/statepb", "transport/wire"}},
	{"metadata/state/keys", []string{"metadata/state/record", "transport/wire"}},
	{"metadata/state/kvtx", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/tree", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "transport/wire"}},
	{"metadata/state/jobs", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "transport/wire"}},
	{"metadata/state/locks", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "transport/wire"}},
	{"metadata/state/usage", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "transport/wire"}},
	{"metadata/state/fleet", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/usage", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/layout", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/fleet", "transport/wire"}},
	{"metadata/state/tier", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/layout", "transport/wire"}},
	{"metadata/state/names", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/locks", "metadata/state/delegation", "metadata/state/jobs", "metadata/state/usage", "metadata/state/layout", "metadata/state/tier", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/content", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/usage", "metadata/state/fleet", "metadata/state/layout", "metadata/state/tier", "metadata/state/names", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/ckpt", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/usage", "metadata/state/fleet", "metadata/state/layout", "metadata/state/tier", "metadata/state/names", "metadata/state/content", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/delegation", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/usage", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/session", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/locks", "metadata/state/delegation", "metadata/state/fleet", "metadata/state/names", "metadata/state/ckpt", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/movers", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/jobs", "metadata/state/usage", "metadata/state/fleet", "metadata/state/layout", "metadata/state/tier", "metadata/state/names", "metadata/state/content", "metadata/state/ckpt", "metadata/state/statepb", "transport/wire"}},
	{"metadata/state/check", []string{"metadata/state/record", "metadata/state/keys", "metadata/state/kvtx", "metadata/state/tree", "metadata/state/locks", "metadata/state/delegation", "metadata/state/jobs", "metadata/state/usage", "metadata/state/fleet", "metadata/state/layout", "metadata/state/tier", "metadata/state/names", "metadata/state/ckpt", "transport/wire"}},
	{"metadata/place", nil},
	{"metadata/lead", []string{"metadata/state", "transport"}},
	{"metadata/leases", []string{"metadata/lead", "metadata/state", "transport"}},
	{"metadata/lockwait", []string{"metadata/lead", "metadata/state", "transport"}},
	{"metadata/members", []string{"metadata/lead", "metadata/state", "transport"}},
	{"metadata/fleet", []string{"metadata/lead", "metadata/place", "metadata/state", "transport"}},
	{"sim", nil},
	{"metadata/repair", []string{"metadata/fleet", "metadata/lead", "metadata/place", "metadata/state", "transport"}},
	{"metadata/raftstore", []string{"metadata/state"}},
	{"transport", nil},
	{"tiers", nil},
	{"internal", nil},
	{"internal/fsck", []string{"client", "transport"}},
	{"internal/rawclient", []string{"transport"}},
	{"internal/llama", []string{"client"}},
	{"internal/devcluster", []string{"internal/netns", "tiers", "transport"}},
	{"internal/bench", []string{"client", "internal/devcluster", "internal/llama", "metadata/raftstore", "metadata/state", "transport"}},
	{"internal/demo", []string{"client", "fuse", "internal/bench", "internal/devcluster", "internal/llama", "internal/slowdisk", "tiers/object", "transport"}},
	{".", nil},
}

// shared lists the folders below internal that not every folder may import. An
// arrow must name them.
var shared = []string{"internal/bench", "internal/demo", "internal/devcluster", "internal/erasure", "internal/llama", "internal/netns", "internal/slowdisk"}

// only names the folders that may import a library, for libraries that could
// be replaced.
var only = map[string][]string{
	"github.com/cockroachdb/pebble/v2":                        {"metadata/raftstore", "tiers/disk", "internal/vfs/pebblevfs"},
	"github.com/hashicorp/raft":                               {"metadata/raftstore"},
	"github.com/hashicorp/raft-wal":                           {"metadata/raftstore"},
	"github.com/hanwen/go-fuse/v2":                            {"fuse", "internal/slowdisk"},
	"github.com/klauspost/reedsolomon":                        {"internal/erasure"},
	"github.com/minio/minio-go/v7":                            {"tiers/object", "internal/bench", "internal/demo", "integration"},
	"github.com/versity/versitygw":                            {"internal/versity", "tiers/object/localserver", "s3"},
	"golang.org/x/sync/semaphore":                             {"internal/limit"}, // see bounds_test.go
	"github.com/spf13/cobra":                                  {"cmd"},
	"github.com/goccy/go-yaml":                                {"cmd"},
	"github.com/jedib0t/go-pretty/v6":                         {"cmd"},
	"github.com/prometheus/client_golang/prometheus/promhttp": {"cmd"},
}

// exempt lists the imports that break the table on purpose, with the reason. The
// benchmark of bare Raft is the limit with which the metadata service is compared,
// so it needs the bare libraries.
var exempt = map[string]string{
	"internal/bench/bareraft": "measures hashicorp/raft, raft-wal and pebble alone",
}

type pkg struct {
	ImportPath string
	Imports    []string
	// Imports of tests are not checked: a test may import upwards.
}

// TestArrows fails on an import that points up or sideways.
func TestArrows(t *testing.T) {
	for _, p := range packages(t) {
		from := folder(p.ImportPath)
		if _, ok := exempt[from]; ok {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module) && !allowed(from, folder(imp)) {
				t.Errorf("%s imports %s: the arrow points up or sideways", from, folder(imp))
			}
			for lib, folders := range only {
				if within(imp, lib) && !anyWithin(from, folders) {
					t.Errorf("%s imports %s, which belongs to %s alone", from, imp, strings.Join(folders, ", "))
				}
			}
			if from == "." && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				t.Errorf("the root package imports %s: it takes the standard library only", imp)
			}
		}
	}
}

// TestStateIsPure fails when the state machine imports a package that a pure
// function does not need.
func TestStateIsPure(t *testing.T) {
	for _, p := range packages(t) {
		if f := folder(p.ImportPath); !within(f, "metadata/state") && f != "metadata/place" || f == "metadata/state/statepb" || f == "metadata/state/statetest" {
			continue
		}
		for _, imp := range p.Imports {
			switch imp {
			case "time", "os", "net", "math/rand", "math/rand/v2", "crypto/rand", "log/slog", "sync":
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list names only %d packages", len(all))
	}
	return all
}

func folder(importPath string) string {
	f := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	if f == "" {
		return "."
	}
	return f
}

func allowed(from, to string) bool {
	if to == "." || within(to, from) || within(to, "internal") && !anyWithin(to, shared) {
		return true
	}
	var best *arrow
	for i := range arrows {
		if within(from, arrows[i].From) && (best == nil || len(arrows[i].From) > len(best.From)) {
			best = &arrows[i]
		}
	}
	if best == nil {
		return false
	}
	// Siblings below one top-level folder are reached through its own arrow.
	return within(to, best.From) && !anyWithin(to, shared) || anyWithin(to, best.To)
}

func anyWithin(path string, folders []string) bool {
	for _, f := range folders {
		if f == "*" && !within(path, "integration") || within(path, f) {
			return true
		}
	}
	return false
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}
