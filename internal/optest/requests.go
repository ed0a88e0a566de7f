// Package optest has what the tests of several packages must know of each request of the metadata
// service. A new request needs one line here.
package optest

// Request is what the tests must know of one request.
type Request struct {
	Stranger
	// Sealed says why a COMMAND cannot change the content or the place of a committed checkpoint.
	// Empty: metadata/state.TestNoRequestChangesACheckpoint tries to.
	Sealed string
	// Test is the test of metadata/state that covers a COMMAND which the random model of that
	// package never makes, and Why the reason. Empty: the model makes it.
	Test, Why string
}

// Stranger is the outcome for callers that are confined to a directory, or have
// the certificate of a server. It lists the kinds of errors, and "ok", over all
// attempts of integration/intruder.
type Stranger struct {
	// Own: a client that is confined to a directory names its own things.
	Own string
	// Confined: it names foreign or missing things. "not found" hides things; "ok"
	// is an answer without anything foreign, the same as for missing things.
	Confined string
	// ReadOnly: the same under a read-only certificate, if the answer differs.
	ReadOnly string
	// Node: a chunkserver names another's things or, if it sends what clients send
	// for its own work, missing ones.
	Node string
	// Moving: no two answers are the same.
	Moving bool
}

const (
	ok       = "ok"
	denied   = "permission denied"
	notFound = "not found"
	readOnly = "read only"
)

// Requests has each request of wire.MetaRequest by its name there.
var Requests = map[string]Request{
	"open_session":      {Stranger: Stranger{Own: denied, Confined: denied, Node: ok}, Sealed: "it opens a session"},
	"renew_session":     {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}},
	"close_session":     {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}, Sealed: "it ends a session"},
	"get_cluster":       {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}},
	"get_topology":      {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}},
	"lookup":            {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"walk":              {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"get_attr":          {Stranger: Stranger{Own: ok, Confined: notFound, Node: notFound}},
	"read_dir":          {Stranger: Stranger{Own: ok, Confined: "not found, ok", Node: denied}}, // ok: without the page of also
	"create":            {Stranger: Stranger{Own: "already exists", Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"rename":            {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"remove":            {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"set_attr":          {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"remove_tree":       {Stranger: Stranger{Own: "not a directory", Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"link":              {Stranger: Stranger{Own: "already exists", Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"release":           {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}, Sealed: "numbers of a session that have no name"},
	"find_orphans":      {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}},
	"keep":              {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}, Sealed: "files that have no name any more", Test: "TestRandomOrphans", Why: "sessions of the model have no files open"},
	"raise_atimes":      {Stranger: Stranger{Own: ok, Confined: ok, ReadOnly: readOnly, Node: denied}, Sealed: "it skips files of checkpoints", Test: "TestRaiseAtimes", Why: "it changes only the atime, by a rule that has a table"},
	"set_xattr":         {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"get_xattr":         {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"grant":             {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: notFound}, Sealed: "grants of a session"},
	"end_grant":         {Stranger: Stranger{Own: ok, Confined: ok, ReadOnly: readOnly, Node: ok}, Sealed: "grants of a session"},
	"place":             {Stranger: Stranger{Own: "stale", Confined: "stale", ReadOnly: readOnly, Node: "stale"}},
	"commit":            {Stranger: Stranger{Own: "stale", Confined: "not found, stale", ReadOnly: readOnly, Node: denied}},
	"get_extents":       {Stranger: Stranger{Own: ok, Confined: "not found, ok", Node: denied}},
	"report_bad_chunks": {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}, Sealed: "where the bytes are, not what they are", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"clone":             {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"register_host":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestClusterTranscripts", Why: "the model's hosts are there when it begins"},
	"heartbeat":         {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"report_chunks":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"deleted_chunks":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"set_device_state":  {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"lease_jobs":        {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "jobs"},
	"renew_job":         {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "jobs"},
	"finish_job":        {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "jobs"},
	"list_jobs":         {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"cancel_job":        {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "jobs"},
	"begin_repair":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"commit_repair":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"end_intents":       {Stranger: Stranger{Own: denied, Confined: denied, Node: ok}, Sealed: "where the bytes are, not what they are", Test: "TestGarbageModel", Why: "repair has a model of its own, with devices"},
	"open_run":          {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}, Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"begin_step":        {Stranger: Stranger{Own: "already exists", Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"seal_part":         {Stranger: Stranger{Own: "conflict", Confined: "conflict, not found", ReadOnly: readOnly, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"get_step":          {Stranger: Stranger{Own: ok, Confined: notFound, Node: notFound}},
	"commit_step":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"abort_step":        {Stranger: Stranger{Own: "conflict", Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"list_runs":         {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"list_steps":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"resolve_step":      {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}, Sealed: "it reads, or fixes the parent of an attempt", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"remove_step":       {Stranger: Stranger{Own: "immutable", Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"mark_step":         {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "what is said of a checkpoint, not what is in it", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"claim_slices":      {Stranger: Stranger{Own: "conflict", Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "checkpoints themselves", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"lease_step":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}, Sealed: "it prevents a removal", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"adopt_step":        {Stranger: Stranger{Own: "not a directory", Confined: notFound, ReadOnly: readOnly, Node: denied}, Test: "TestAdoptionFaults", Why: "a job of the leader, which has fault tables of its own"},
	"release_step":      {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}, Sealed: "it permits a removal again", Test: "TestCheckpointTranscripts", Why: "checkpoints have scripts of their own"},
	"list_parts":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: notFound}},
	"queue_move":        {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"begin_object":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"end_object":        {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"commit_flush":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"move_object":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"commit_evict":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"commit_stage":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"deleted_object":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"report_objects":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are", Test: "TestBadObjects", Why: "what a bucket has beside the records is a table: the model's movers never find an object gone"},
	"check_objects":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"list_bad_objects":  {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}},
	"get_object":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: notFound}},
	"get_tier":          {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}},
	"set_policy":        {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "settings beside the files"},
	"get_policy":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"get_usage":         {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"set_quota":         {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "settings beside the files"},
	"list_quotas":       {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}},
	"recount":           {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself"},
	"clone_tree":        {Stranger: Stranger{Own: "already exists", Confined: notFound, ReadOnly: readOnly, Node: denied}},
	"concat":            {Stranger: Stranger{Own: "invalid argument", Confined: "invalid argument, not found", ReadOnly: readOnly, Node: denied}, Test: "TestConcatFaults", Why: "a job of ranges, which has fault tables of its own"},
	"raise_routing":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestRoutingEpoch", Why: "routing has nothing to do with names and content"},
	"leases":            {Stranger: Stranger{Own: ok, Confined: ok, Node: denied}},
	"watch":             {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"set_lock":          {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}, Sealed: "it excludes other locks and nothing else"},
	"get_lock":          {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"await_lock":        {Stranger: Stranger{Own: ok, Confined: notFound, Node: denied}},
	"delegate":          {Stranger: Stranger{Own: ok, Confined: notFound, ReadOnly: readOnly, Node: denied}, Sealed: "no directory of a checkpoint is delegated"},
	"end_delegation":    {Stranger: Stranger{Own: ok, Confined: ok, ReadOnly: readOnly, Node: denied}, Sealed: "it ends the delegation of a directory"},
	"batch":             {Stranger: Stranger{Own: ok, Confined: ok, ReadOnly: readOnly, Node: denied}, Sealed: "it changes only delegated directories, and no directory of a checkpoint is one"},
	"member_beat":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"get_members":       {Stranger: Stranger{Own: ok, Confined: ok, Node: denied, Moving: true}},
	"add_member":        {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"remove_member":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"finish_upgrade":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"read_backup":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"set_maintenance":   {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestMaintenance", Why: "hosts have nothing to do with names and content"},
	"set_host_state":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestDrainedHostIsRemoved", Why: "hosts have nothing to do with names and content"},
	"start_scrub":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"get_leader":        {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}},
	"get_member":        {Stranger: Stranger{Own: ok, Confined: ok, Node: ok}},
	"list_quarantine":   {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"settle_chunks":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are", Test: "TestRandomMemory", Why: "what is in memory has a model of its own, with reboots"},
	"list_memory":       {Stranger: Stranger{Own: denied, Confined: denied, Node: ok}},
	"list_lost":         {Stranger: Stranger{Own: ok, Confined: "not found, ok", Node: denied}},
	"set_rebalance":     {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestRebalanceSettings", Why: "how full devices are has nothing to do with names and content"},
	"commit_rewrite":    {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are"},
	"check_chunks":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
	"drop_chunks":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "where the bytes are, not what they are", Test: "TestDropChunks", Why: "nothing is unexplained in the model"},
	"revoke_cert":       {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}, Sealed: "hosts, devices and the service itself", Test: "TestRevocations", Why: "certificates have nothing to do with names and content"},
	"list_revoked":      {Stranger: Stranger{Own: denied, Confined: denied, Node: denied}},
}
