package intruder_test

// row says what becomes of a request: the kinds of errors, and "ok", over all that is tried.
type row struct {
	// own: a client that is confined to a directory names what is its own.
	own string
	// confined: it names what is not, or does not exist. "not found" is what hides
	// things; "ok" is an answer with nothing foreign in it, the same as for what is not there.
	confined string
	// readOnly: the same under a read-only certificate, where that is another answer.
	readOnly string
	// node: a chunkserver names what another has, or, where any client may send the request,
	// what does not exist: servers are confined to no directory.
	node string
	// moving: no two answers are the same. sessionless: it needs no session.
	moving, sessionless bool
}

// weaknesses are requests that show something of foreign things, which they should not. One
// that is mended fails the tests until it is taken out of here.
var weaknesses = map[string]struct {
	shows string // in an answer
	tells string // an error, of what exists
	why   string
}{
	"list_quotas": {shows: "inode in moraine.wire.QuotasReply.last",
		why: "the place to go on from is the last directory that was looked at, in the scope or not: it shows that an inode has a quota"},
	"commit": {tells: "its stripes are committed",
		why: "a stripe that brings the number of a committed one is compared with it before its grant is looked for: the error shows that the number is taken, and whether the record is this one"},
}

// rows has a row for each request of the metadata service.
var rows = map[string]row{
	"open_session":      {own: "permission denied", confined: "permission denied", node: "ok"},
	"renew_session":     {own: "ok", confined: "ok", node: "ok"},
	"close_session":     {own: "ok", confined: "ok", node: "ok"},
	"get_cluster":       {own: "ok", confined: "ok", node: "ok"},
	"get_topology":      {own: "ok", confined: "ok", node: "ok"},
	"lookup":            {own: "ok", confined: "not found", node: "not found"},
	"walk":              {own: "ok", confined: "not found", node: "not found"},
	"get_attr":          {own: "ok", confined: "not found", node: "not found"},
	"read_dir":          {own: "ok", confined: "not found", node: "not found"},
	"create":            {own: "already exists", confined: "not found", readOnly: "read only", node: "not found"},
	"rename":            {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"remove":            {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"set_attr":          {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"remove_tree":       {own: "not a directory", confined: "not found", readOnly: "read only", node: "not found"},
	"link":              {own: "already exists", confined: "not found", readOnly: "read only", node: "not found"},
	"release":           {own: "ok", confined: "ok", readOnly: "read only", node: "ok"},
	"set_xattr":         {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"get_xattr":         {own: "ok", confined: "not found", node: "not found"},
	"grant":             {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"end_grant":         {own: "ok", confined: "ok", readOnly: "read only", node: "ok"},
	"place":             {own: "stale", confined: "stale", readOnly: "read only", node: "stale"},
	"commit":            {own: "stale", confined: "not found, stale", readOnly: "read only", node: "not found, stale"},
	"get_extents":       {own: "ok", confined: "not found", node: "not found"},
	"report_bad_chunks": {own: "ok", confined: "ok", node: "ok"},
	"clone":             {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"register_host":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"heartbeat":         {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"report_chunks":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"deleted_chunks":    {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"set_device_state":  {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"lease_jobs":        {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"renew_job":         {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"finish_job":        {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"list_jobs":         {own: "ok", confined: "not found", node: "not found"},
	"cancel_job":        {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"begin_repair":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_repair":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"end_intents":       {own: "permission denied", confined: "permission denied", node: "ok"},
	"open_run":          {own: "ok", confined: "not found", node: "not found"},
	"begin_step":        {own: "already exists", confined: "not found", readOnly: "read only", node: "not found"},
	"seal_part":         {own: "conflict", confined: "conflict, not found", readOnly: "read only", node: "conflict, not found"},
	"get_step":          {own: "ok", confined: "not found", node: "not found"},
	"commit_step":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"abort_step":        {own: "conflict", confined: "not found", readOnly: "read only", node: "not found"},
	"list_runs":         {own: "ok", confined: "not found", node: "not found"},
	"list_steps":        {own: "ok", confined: "not found", node: "not found"},
	"resolve_step":      {own: "ok", confined: "not found", node: "not found"},
	"remove_step":       {own: "immutable", confined: "not found", readOnly: "read only", node: "not found"},
	"lease_step":        {own: "ok", confined: "not found", node: "not found"},
	"release_step":      {own: "ok", confined: "ok", node: "ok"},
	"list_parts":        {own: "ok", confined: "not found", node: "not found"},
	"queue_move":        {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"begin_object":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"end_object":        {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_flush":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"move_object":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_evict":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_stage":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"deleted_object":    {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"get_object":        {own: "ok", confined: "not found", node: "not found"},
	"get_tier":          {own: "ok", confined: "ok", node: "ok"},
	"set_policy":        {own: "ok", confined: "not found", readOnly: "read only", node: "not found"},
	"get_policy":        {own: "ok", confined: "not found", node: "not found"},
	"get_usage":         {own: "ok", confined: "not found", node: "not found"},
	"set_quota":         {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"list_quotas":       {own: "ok", confined: "ok", node: "ok"},
	"recount":           {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"clone_tree":        {own: "already exists", confined: "not found", readOnly: "read only", node: "not found"},
	"concat":            {own: "invalid argument", confined: "invalid argument, not found", readOnly: "read only", node: "invalid argument, not found"},
	"raise_routing":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"leases":            {own: "ok", confined: "ok", node: "ok"},
	"watch":             {own: "ok", confined: "not found", node: "not found"},
	"member_beat":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"get_members":       {own: "ok", confined: "ok", node: "ok", moving: true},
	"add_member":        {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"remove_member":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"finish_upgrade":    {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"read_backup":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"set_maintenance":   {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"set_host_state":    {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"start_scrub":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"get_leader":        {own: "ok", confined: "ok", node: "ok", sessionless: true},
	"get_member":        {own: "ok", confined: "ok", node: "ok", sessionless: true},
	"list_quarantine":   {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"settle_chunks":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"list_memory":       {own: "permission denied", confined: "permission denied", node: "ok"},
	"list_lost":         {own: "ok", confined: "ok", node: "ok"},
	"set_rebalance":     {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_rewrite":    {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"commit_pack":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"check_chunks":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"drop_chunks":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"hold":              {own: "ok", confined: "not found, ok", readOnly: "read only", node: "not found, ok", moving: true},
	"end_hold":          {own: "ok", confined: "ok", readOnly: "read only", node: "ok"},
	"batch":             {own: "ok", confined: "already exists, not found", readOnly: "read only", node: "already exists, not found"},
	"revoke_cert":       {own: "permission denied", confined: "permission denied", node: "permission denied"},
	"list_revoked":      {own: "permission denied", confined: "permission denied", node: "permission denied"},
}
