// Package clustercmd has the commands below `moraine cluster`: status, upgrade, quarantine,
// lost.
//
// One path through it: `moraine cluster status` -> askStatus requests a wire.ClusterReply ->
// judge turns it into findings and a health (the status*.go files, one a subject) ->
// printStatus shows it, and the health becomes the exit code.
package clustercmd

import (
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
)

// clusterStatus is what `cluster status` prints: what is there, and in words which losses
// the data would survive now.
type clusterStatus struct {
	Cluster      string           `json:"cluster"`
	Health       string           `json:"health"` // green, unknown, degraded, or critical
	Findings     []string         `json:"findings"`
	Survives     []string         `json:"survives"`
	Notes        []string         `json:"notes"` // work in progress that needs no action
	Scheme       string           `json:"default_scheme"`
	FeatureLevel uint64           `json:"feature_level"`
	Incarnation  uint64           `json:"incarnation"`
	Metadata     []metadataStatus `json:"metadata"`
	Hosts        []hostStatus     `json:"hosts"`
	Capacity     uint64           `json:"capacity_bytes"`
	Used         uint64           `json:"used_bytes"`
	Inodes       uint64           `json:"inodes"`
	Stripes      uint64           `json:"stripes"`
	InlineFiles  uint64           `json:"inline_files"` // contents of small files in the metadata; clones share one
	InlineBytes  uint64           `json:"inline_bytes"`
	Sessions     uint64           `json:"sessions"`
	RepairQueued uint64           `json:"repair_queued"`
	RepairActive uint64           `json:"repair_running"`
	PendingBytes uint64           `json:"pending_bytes"`
	KeptBytes    uint64           `json:"kept_bytes"` // dead, and kept for backups; not in pending_bytes
	Horizon      uint64           `json:"backup_horizon_seconds"`
	HorizonNow   uint64           `json:"backup_horizon_now_seconds"` // for how long all of it has been kept
	LeakedBytes  uint64           `json:"leaked_bytes"`
	LostStripes  uint64           `json:"lost_stripes"`
	Unreported   uint64           `json:"devices_unreported"` // since the metadata was restored
	Backups      *backupsStatus   `json:"metadata_backups,omitempty"`
	LostFiles    int              `json:"lost_files"` // that have lost bytes
	// LostObjects and BadObjects count objects that are missing in their bucket or differ from
	// their records. Some bytes of files are only in LostObjects. The files of BadObjects are
	// whole without them. StuckMoves counts jobs of the object tier that fail again and again.
	LostObjects uint64                `json:"lost_objects"`
	BadObjects  uint64                `json:"bad_objects"`
	StuckMoves  uint64                `json:"stuck_moves"`
	Healing     *healingStatus        `json:"healing,omitempty"`
	Rebalance   *view.RebalanceStatus `json:"rebalance,omitempty"`
	Rewriting   *view.RewritingStatus `json:"rewriting,omitempty"`
	Waits       *view.WaitsStatus     `json:"waiting_for_repair,omitempty"`
	// Certificates are those of servers, and of gateways that have sessions.
	Certificates []certificateStatus `json:"certificates"`
	Buckets      []view.BucketStatus `json:"buckets"`
	Check        checkStatus         `json:"metadata_check"`
	EndedGrants  uint64              `json:"ended_grants"`
	Commands     uint64              `json:"commands"`
	Entries      uint64              `json:"entries"`

	up       int // hosts that take new chunks, and have room for them
	taking   int // hosts that take new chunks
	draining int // hosts that are up, and whose devices are drained
	away     int // hosts that are up, and are announced to be away
	full     int // devices in service that have no room for new chunks
	silent   int // hosts that are down, or unknown, and were not declared dead: their chunks still count
	unknown  int // findings that say that something is not known yet
}

type metadataStatus struct {
	ID      string `json:"id"`
	Role    string `json:"role"`
	Status  string `json:"status"` // up, down or unknown
	Alive   bool   `json:"alive"`  // the leader knows that it is up
	Applied uint64 `json:"applied"`
	// LowSpace: its disk is nearly full.
	LowSpace bool   `json:"low_space"`
	Endpoint string `json:"endpoint"` // reachable, partly reachable, unreachable or unknown; empty where it is not up
	// Stalled: it waits for its disk, and no other server can lead; the reason.
	Stalled string `json:"stalled"`
}

// Health. Unknown: nothing bad is known, but something that green needs is not known
// either.
const (
	healthGreen    = "green"
	healthUnknown  = "unknown"
	healthDegraded = "degraded"
	healthCritical = "critical"
)

// healths are in order, the worst last.
var healths = []string{healthGreen, healthUnknown, healthDegraded, healthCritical}

// judge turns the leader's answer into a status in words.
func judge(c *wire.ClusterReply) *clusterStatus {
	s := &clusterStatus{
		Health: healthGreen, Findings: []string{}, Survives: []string{}, Notes: []string{}, Metadata: []metadataStatus{}, Hosts: []hostStatus{},
		FeatureLevel: c.FeatureLevel, Incarnation: c.Incarnation,
		Inodes: c.Inodes, Stripes: c.Stripes, Sessions: c.Sessions,
		InlineFiles: c.InlineFiles, InlineBytes: c.InlineBytes,
		RepairQueued: c.RepairQueued, RepairActive: c.RepairRunning,
		PendingBytes: c.PendingBytes, LeakedBytes: c.LeakedBytes, LostStripes: c.LostStripes,
		Commands: c.Commands, Entries: c.Entries, Certificates: []certificateStatus{}, Buckets: []view.BucketStatus{}, Check: checkStatus{Found: []string{}},
	}
	if len(c.Cluster) == len(moraine.UUID{}) {
		s.Cluster = moraine.UUID(c.Cluster).String()
	}
	s.judgeMetadata(c.Metadata)
	s.judgeHosts(c.Topology.GetHosts(), c.ClusterTimeMillis)
	s.judgeScheme(c.DefaultScheme)
	s.judgeReports(c.Unreported)
	s.judgeBackups(c.Backups)
	s.judgeHorizon(c)
	s.judgeStripes(c)
	s.judgeTrust(c)
	if s.Rebalance = view.DescribeRebalance(c.Rebalance); s.Rebalance.Words() != "" {
		s.Notes = append(s.Notes, s.Rebalance.Words())
	}
	if s.Rewriting = view.DescribeRewriting(c.Rewriting); s.Rewriting.Words() != "" {
		s.Notes = append(s.Notes, s.Rewriting.Words())
	}
	return s
}

func (s *clusterStatus) worse(health, format string, args ...any) {
	if slices.Index(healths, health) > slices.Index(healths, s.Health) {
		s.Health = health
	}
	if health == healthUnknown {
		s.unknown++
	}
	s.Findings = append(s.Findings, fmt.Sprintf(format, args...))
}

func (s *clusterStatus) judgeMetadata(nodes []*wire.MetadataNode) {
	voters, alive, unknown := 0, 0, 0
	for _, n := range nodes {
		role := "follower"
		if n.Leader {
			role = "leader"
		}
		s.Metadata = append(s.Metadata, metadataStatus{ID: n.Id, Role: role, Status: memberStatus(n), Alive: memberStatus(n) == view.ServerUp, Applied: n.Applied, LowSpace: n.LowSpace, Stalled: n.Stalled})
		if n.Stalled != "" {
			s.worse(healthCritical, "metadata server %s waits for its disk, and no other can lead: "+
				"nothing can be written (%s)", n.Id, n.Stalled)
		}
		if n.LowSpace {
			s.worse(healthDegraded, "the disk of metadata server %s is nearly full (below 5%% free): "+
				"the service may refuse commands that grow the namespace. Make room on that disk, and "+
				"remove files (`moraine rm`)", n.Id)
		}
		if !n.Voter {
			continue
		}
		voters++
		switch memberStatus(n) {
		case view.ServerUp:
			alive++
		case view.ServerUnknown:
			unknown++
			s.worse(healthUnknown, "it is not known yet whether metadata server %s is up: the leader "+
				"has received nothing from it", n.Id)
		default:
			s.worse(healthDegraded, "metadata server %s is down", n.Id)
		}
	}
	majority := voters/2 + 1
	switch spare := alive - majority; {
	case unknown > 0:
		s.Survives = append(s.Survives, "it is not known yet how many metadata servers may be lost")
	case voters == 1:
		s.Survives = append(s.Survives, "metadata is on 1 server: its loss is the loss of the namespace")
	case spare <= 0:
		s.worse(healthCritical, "metadata has no server to spare")
		s.Survives = append(s.Survives, "metadata stops if one more of its servers is lost")
	default:
		s.Survives = append(s.Survives, fmt.Sprintf("metadata goes on if %s lost", cli.Are(spare, "of its servers is", "of its servers are")))
	}
}

// stalled reports whether a metadata server waits for its disk.
func (s *clusterStatus) stalled() bool {
	return slices.ContainsFunc(s.Metadata, func(m metadataStatus) bool { return m.Stalled != "" })
}

// memberStatus is what is known of a metadata server.
func memberStatus(n *wire.MetadataNode) string {
	switch {
	case !n.Seen:
		return view.ServerUnknown
	case !n.Alive:
		return view.ServerDown
	}
	return view.ServerUp
}
