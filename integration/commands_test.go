package integration_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// listing is a command that prints objects for scripts: the keys that each of them
// has, and those that it may have. Scripts depend on these: keys may be added, but
// not removed or renamed.
type listing struct {
	args     string
	keys     string
	optional string
	inner    map[string]string // keys of inner objects, by the keys that lead there; optional ones after a bar
	empty    bool              // it may print nothing
}

const waitsKeys = "counted more lost lost_device corrupt degraded drain no_room no_host unreadable"

// bucketKeys are the keys of a bucket's health.
const bucketKeys = "bucket status hosts hosts_answered hosts_failed error error_host failing_seconds answered_seconds_ago"

var listings = []listing{
	{args: "version", keys: "version feature_level go os arch"},
	{args: "cluster status", keys: "cluster health findings survives default_scheme feature_level incarnation metadata hosts capacity_bytes used_bytes " +
		"inodes stripes inline_files inline_bytes sessions repair_queued repair_running pending_bytes kept_bytes backup_horizon_seconds backup_horizon_now_seconds leaked_bytes lost_stripes lost_files lost_objects bad_objects devices_unreported commands entries notes certificates buckets metadata_check ended_grants stuck_moves", optional: "metadata_backups healing rebalance rewriting waiting_for_repair",
		inner: map[string]string{
			"metadata_backups":   "node dir interval_seconds age_seconds bytes kept error overdue",
			"metadata":           "id role status alive applied low_space endpoint stalled",
			"hosts":              "id status alive reports_complete devices devices_in capacity_bytes used_bytes chunks state endpoint | rack",
			"certificates":       "role node expires seconds_left",
			"buckets":            bucketKeys,
			"metadata_check":     "enabled done age_seconds problems found error",
			"healing":            "done total stripes_per_minute bytes_per_second eta_seconds elapsed_seconds devices_being_looked_through",
			"rebalance":          rebalanceKeys,
			"waiting_for_repair": waitsKeys,
			"rewriting":          "looking rounds elapsed_seconds stripes named_bytes dead_bytes shared_stripes chosen_stripes chosen_bytes",
		}},
	{args: "rebalance status", keys: rebalanceKeys},
	{args: "host ls", keys: "id status alive devices state used_bytes capacity_bytes chunks usage_known", optional: "rack maintenance_seconds"},
	{args: "scrub status", keys: "device host running chunks bytes bad used_bytes eta_seconds last_bad corrupt_chunks", optional: "last_done"},
	{args: "fsck", inner: map[string]string{"waiting_for_repair": waitsKeys}, keys: "clean devices chunks bytes pending_chunks pending_bytes findings more_findings lost_stripes lost_files objects bad_objects not_checked metadata waiting_for_repair path queued_for_repair dropped seconds"},
	{args: "fsck --metadata moraine:///", inner: map[string]string{"waiting_for_repair": waitsKeys}, keys: "clean devices chunks bytes pending_chunks pending_bytes findings more_findings lost_stripes lost_files objects bad_objects not_checked metadata waiting_for_repair path queued_for_repair dropped seconds"},
	{args: "tier status", keys: "buckets hosts objects bytes queued_flushes queued_stages queued_evictions queued_deletions intents unsettled_keys probed probed_since_seconds health stuck", optional: "stuck_job stuck_subject stuck_error",
		inner: map[string]string{"probed": "bucket verified if_none_match if_match", "health": bucketKeys}},
	{args: "metadata ls", keys: memberKeys, optional: "no_vote_because"},
	{args: "metadata status", keys: "cluster incarnation feature_level leader term leads_seconds log_last commit sessions leases servers commands",
		inner: map[string]string{
			"servers": memberKeys + " contact_seconds term applied log_entries log_bytes snapshot snapshot_bytes snapshot_age_seconds " +
				"apply append low_space write_waits_seconds | no_vote_because",
			"servers.apply":  latencyKeys,
			"servers.append": latencyKeys,
			"commands":       "name count failed reads",
		}},
	{args: "cluster lost", keys: "path inode ranges", empty: true},
	{args: "cluster quarantine", keys: "device host stripe index bytes incarnation", empty: true},
	{args: "cluster upgrade", keys: "feature_level can_be_raised_to servers", inner: map[string]string{"servers": "id release level leader"}},
	{args: "device ls", keys: "id host uuid state status alive capacity_bytes used_bytes chunks usage_known report_complete", optional: "reason health model worn_percent celsius media_errors put_micros read_micros corrupt_chunks"},
	{args: "job ls", keys: "id kind state subject done total attempts", optional: "holder error", empty: true},
	{args: "job ls --all", keys: "id kind state subject done total attempts", optional: "holder error"},
	{args: "ckpt ls moraine:///runs", keys: "name attempt launch committed_steps"},
	{args: "ckpt ls moraine:///runs/a", keys: stepKeys, optional: stepOptional, inner: reachedKeys},
	{args: "ckpt show moraine:///runs/a --step 7", keys: stepKeys + " lost_files", optional: stepOptional, inner: reachedKeys},
	{args: "ckpt mark moraine:///runs/a --step 7 --healthy --tag best --note good", keys: stepKeys + " mark tags note", optional: stepOptional, inner: reachedKeys},
	{args: "ckpt pin moraine:///runs/a --step 7", keys: stepKeys + " pinned", optional: stepOptional, inner: reachedKeys},
	{args: "ckpt unpin moraine:///runs/a --step 7", keys: stepKeys, optional: stepOptional, inner: reachedKeys},
	{args: "ckpt policy moraine:///runs/a --level nvme --every 1 --keep-last 1 --keep-every 5 --keep-for 1h --keep-bytes 1MiB --keep-tag best",
		keys: "level own every keep_last keep_every keep_seconds keep_bytes keep_tags"},
	{args: "ckpt prune moraine:///runs/a --dry-run --all", keys: "step attempt level bytes action why done"},
	{args: "ckpt watch moraine:///runs/a --once", keys: "time run levels steps waiting", optional: "slowest", inner: map[string]string{
		"levels": exposureKeys, "steps": stepKeys + "|" + stepOptional, "steps.reached": "|memory nvme object"}},
	{args: "ckpt drill moraine:///runs/a", keys: "level step attempt lost_steps lost_seconds bytes restore_seconds restore_rate", optional: "committed reached error read_from"},
	{args: "ckpt verify moraine:///runs/a", keys: "step attempt files tensors bytes bytes_without_digest digest"},
	{args: "ls moraine:///", keys: fileKeys, optional: fileOptional},
	{args: "stat moraine:///f", keys: fileKeys, optional: fileOptional},
	{args: "info moraine:///f", keys: "path inode size generation level stripe_bytes inline_bytes object_bytes hole_bytes bytes_by_level devices extents", inner: map[string]string{
		"bytes_by_level": "|memory nvme", "devices": "device host alive chunks", "extents": "offset length from | stripe scheme chunks bucket object", "extents.chunks": "device host level"}},
	{args: "du moraine:///", keys: "path bytes files directories"},
	{args: "policy get moraine:///", keys: "path flush scheme foreign trash own"},
	{args: "quota get moraine:///", keys: "path bytes inodes limited", optional: "room_bytes room_inodes quota_path quota_bytes quota_inodes"},
	{args: "quota check moraine:///", keys: "path bytes inodes correct", optional: "found"},
	{args: "quota ls", keys: "path bytes inodes quota_bytes quota_inodes", empty: true},
}

// reachedKeys are the levels that a step has reached.
var reachedKeys = map[string]string{"reached": "|memory nvme object", "lost_files": "path inode ranges"}

const (
	stepKeys     = "attempt step state level ranks bytes degraded_stripes protects"
	stepOptional = "committed path missing reason reached mark note tags pinned ends_at"
	exposureKeys = "level step attempt lost_steps lost_seconds|committed reached"

	fileKeys     = "path type size mode uid gid modified degraded_stripes stored_bytes inline_bytes clean evicted"
	fileOptional = "inode generation level links target"

	memberKeys    = "id addresses role alive match lag release level"
	latencyKeys   = "count p50_seconds p99_seconds max_seconds"
	rebalanceKeys = "state band_percent limit_bytes_per_second mean_percent fullest_percent fullest_device emptiest_percent emptiest_device " +
		"devices_outside left_bytes moved_chunks moved_bytes bytes_per_second eta_seconds elapsed_seconds"
)

// objects reads a command's output for scripts: one object a line.
func objects(t *testing.T, out string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(out) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &o), "%q", line)
		all = append(all, o)
	}
	return all
}

// hold checks the output of a listing against its keys. A value is never null: an
// empty list is [].
func (l listing) hold(t *testing.T, out string) {
	t.Helper()
	all := objects(t, out)
	if !l.empty {
		require.NotEmpty(t, all, "%s printed nothing", l.args)
	}
	for _, o := range all {
		l.holdObject(t, "", o, l.keys, l.optional)
	}
}

// holdObject checks an object against its keys, and its inner objects against those
// of their place.
func (l listing) holdObject(t *testing.T, place string, o map[string]any, keys, optional string) {
	t.Helper()
	required, known := strings.Fields(keys), strings.Fields(keys+" "+optional)
	for _, key := range required {
		require.Contains(t, o, key, "%s %s: %v", l.args, place, slices.Sorted(maps.Keys(o)))
	}
	for key, value := range o {
		require.True(t, slices.Contains(known, key), "%s %s: the key %q is not on record", l.args, place, key)
		require.NotNil(t, value, "%s %s: %s", l.args, place, key)
		if inner := objectsIn(value); len(inner) > 0 {
			at := strings.TrimPrefix(place+"."+key, ".")
			require.Contains(t, l.inner, at, "%s: the keys of what is in it are not on record", l.args)
			required, optional, _ := strings.Cut(l.inner[at], "|")
			for _, v := range inner {
				l.holdObject(t, at, v, required, optional)
			}
		}
	}
}

// objectsIn returns the objects in a value: the value itself, or its elements.
func objectsIn(value any) (inner []map[string]any) {
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	for _, v := range list {
		if o, ok := v.(map[string]any); ok {
			inner = append(inner, o)
		}
	}
	return inner
}

// tensorFile makes a small safetensors file.
func tensorFile(t *testing.T) string {
	t.Helper()
	h := safetensors.Header{Tensors: []safetensors.Tensor{{Name: "w", DType: safetensors.U8, Shape: []int64{1000}}}}
	require.NoError(t, safetensors.Order(h.Tensors))
	header, err := h.Encode()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, os.WriteFile(path, append(header, make([]byte, 1000)...), 0o644))
	return path
}

// permissionsAreCopied copies a program and a read-only file into the cluster,
// within it, over each other and out again.
func permissionsAreCopied(t *testing.T, env []string) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run.sh": 0o755, "fixed": 0o444, "private": 0o600} {
		local, back := filepath.Join(dir, name), filepath.Join(dir, "back-"+name)
		require.NoError(t, os.WriteFile(local, []byte("#!/bin/true\n"), 0o644))
		require.NoError(t, os.Chmod(local, mode))
		for range 2 { // the second time over existing files
			works(t, env, "cp", local, "moraine:///"+name)
		}
		works(t, env, "cp", "moraine:///"+name, "moraine:///copy-of-"+name)
		require.Equal(t, mode.String(), objects(t, works(t, env, "stat", "moraine:///copy-of-"+name, "--json"))[0]["mode"])
		works(t, env, "cp", "moraine:///copy-of-"+name, back)
		st, err := os.Stat(back)
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode())
		for _, there := range []string{name, "copy-of-" + name} {
			works(t, env, "rm", "moraine:///"+there)
		}
	}
}

// The interface for scripts: exit codes, and JSON with stable keys, while the
// cluster is whole, while it is degraded, and when it does not answer.
func TestWhatScriptsSee(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	works(t, env, "cp", "/proc/self/status", "moraine:///small")
	require.Equal(t, []any{}, objects(t, works(t, env, "info", "moraine:///small", "--json"))[0]["devices"])
	works(t, env, "rm", "moraine:///small")
	large := filepath.Join(t.TempDir(), "large") // too large for the metadata
	require.NoError(t, os.WriteFile(large, make([]byte, 20_000), 0o600))
	works(t, env, "cp", large, "moraine:///f")
	works(t, env, "ckpt", "save", "moraine:///runs/a", "--step", "7", tensorFile(t))
	for _, l := range listings {
		t.Run(l.args, func(t *testing.T) { l.hold(t, works(t, env, append(strings.Fields(l.args), "--json")...)) })
	}
	report := objects(t, works(t, env, "metadata", "status", "--json"))[0]
	require.Len(t, objectsIn(report["servers"]), 1)
	require.NotEmpty(t, objectsIn(report["commands"]))
	for _, of := range []string{"apply", "append"} {
		times := objectsIn(report["servers"])[0][of].(map[string]any)
		require.Positive(t, times["count"], of)
		require.Positive(t, times["p50_seconds"], of)
		require.LessOrEqual(t, times["p50_seconds"], times["p99_seconds"], of)
	}
	t.Run("permissions of copies", func(t *testing.T) { permissionsAreCopied(t, env) })
	t.Run("quotas", func(t *testing.T) { quotasHold(t, env) })
	t.Run("snapshots", func(t *testing.T) { snapshotsHold(t, env) })
	status := objects(t, works(t, env, "cluster", "status", "--json"))[0]
	require.Equal(t, "green", status["health"])

	for _, wrong := range [][]string{{"cluster", "status", "--nope"}, {"job", "cancel", "x"}, {"fsck", "--accept-loss"}, {"nope"}} {
		requireRefused(t, invoke(t, env, wrong...), 2)
	}
	requireRefused(t, invoke(t, env, "stat", "moraine:///nope", "--json"), 1, "/nope", "not found")

	require.NoError(t, c.Nodes(devcluster.Chunkserver)[0].Kill())
	var o outcome
	require.Eventually(t, func() bool {
		o = invoke(t, env, "cluster", "status", "--json")
		return o.code != 0
	}, time.Minute, 200*time.Millisecond)
	require.Equal(t, 3, o.code, "degraded: %s", o.stderr)
	require.Empty(t, o.stderr, "what is wrong is in the status")
	listings[1].hold(t, o.stdout)
	status = objects(t, o.stdout)[0]
	require.Equal(t, "degraded", status["health"])
	require.NotEmpty(t, status["findings"])
	o = invoke(t, env, "fsck", "--json")
	require.Equal(t, 1, o.code, "a chunkserver is down: %s", o.stderr)
	found := objects(t, o.stdout)[0]
	require.Equal(t, false, found["clean"])
	require.Empty(t, found["findings"], "it is not taken for missing")
	require.Len(t, found["not_checked"], 1)
	requireRefused(t, invoke(t, env, "fsck"), 1, "not checked")
	if !long() {
		return // the command waits 15 s for a cluster that does not answer
	}
	requireRefused(t, invoke(t, append(env, "MORAINE_ENDPOINT=127.0.0.1:1"), "cluster", "status", "--json"), 1, "127.0.0.1:1")
}
