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
	Notes        []string         `json:"notes"` // what goes on, and needs nobody
	Scheme       string           `json:"default_scheme"`
	FeatureLevel uint64           `json:"feature_level"`
	Incarnation  uint64           `json:"incarnation"`
	Metadata     []metadataStatus `json:"metadata"`
	Hosts        []hostStatus     `json:"hosts"`
	Capacity     uint64           `json:"capacity_bytes"`
	Used         uint64           `json:"used_bytes"`
	Inodes       uint64           `json:"inodes"`
	Stripes      uint64           `json:"stripes"`
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
	LostFiles    int              `json:"lost_files"` // that lost bytes which were only in memory
	// LostObjects and BadObjects count objects that are missing in their bucket or differ from
	// their records. Some bytes of files are only in LostObjects. The files of BadObjects are
	// whole without them.
	LostObjects uint64                `json:"lost_objects"`
	BadObjects  uint64                `json:"bad_objects"`
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

type hostStatus struct {
	ID       string `json:"id"`
	Rack     string `json:"rack,omitempty"`
	Status   string `json:"status"` // up, down or unknown
	Alive    bool   `json:"alive"`  // the leader knows that it is up
	Reported bool   `json:"reports_complete"`
	Devices  int    `json:"devices"`
	In       int    `json:"devices_in"`
	Capacity uint64 `json:"capacity_bytes"`
	Used     uint64 `json:"used_bytes"`
	Chunks   uint64 `json:"chunks"`
	State    string `json:"state"`    // as `host ls` shows it
	Endpoint string `json:"endpoint"` // reachable, partly reachable, unreachable or unknown; empty where it is not up
}

// healingStatus is the progress of the repair.
type healingStatus struct {
	Done        uint64 `json:"done"`
	Total       uint64 `json:"total"`
	PerMinute   uint64 `json:"stripes_per_minute"`
	BytesPerSec uint64 `json:"bytes_per_second"`
	ETASeconds  uint64 `json:"eta_seconds"` // 0: not known yet
	Elapsed     uint64 `json:"elapsed_seconds"`
	Scanning    uint32 `json:"devices_being_looked_through"`
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

func (s *clusterStatus) judgeHosts(hosts []*wire.Host, clusterTime uint64) {
	for _, h := range hosts {
		row := view.DescribeHost(h, clusterTime)
		hs := hostStatus{ID: h.Id, Rack: h.Rack, Status: row.Status, Alive: row.Alive, Reported: true, Devices: len(h.Devices), State: row.State}
		away := h.MaintenanceUntil > clusterTime
		var can hostRoom
		for _, d := range h.Devices {
			s.judgeDevice(h, d, &hs, &can)
		}
		switch {
		case row.Status == view.ServerUnknown && row.Devices > 0:
			s.worse(healthUnknown, "it is not known yet whether host %s is up: it has not registered "+
				"with this metadata leader, or has not answered this request", h.Id)
		case !h.Alive && away:
			s.worse(healthDegraded, "host %s is down for maintenance (%d s left)", h.Id, row.AwaySeconds)
		case !h.Alive:
			s.worse(healthDegraded, "host %s is down", h.Id)
		case away:
			s.away++
			s.Notes = append(s.Notes, fmt.Sprintf("host %s is up and announced to be away (%s): it "+
				"takes nothing new", h.Id, row.State))
		case can.draining && !can.takes:
			s.draining++
		}
		if can.silent {
			s.silent++
		}
		if can.takes && !away {
			s.taking++
		}
		if can.room && !away {
			s.up++
		}
		s.Hosts = append(s.Hosts, hs)
		s.Capacity += hs.Capacity
		s.Used += hs.Used
	}
	if len(hosts) == 0 {
		s.worse(healthDegraded, "no chunkserver has registered: nothing can be written")
	}
}

// hostRoom is what the devices of a host can take.
type hostRoom struct {
	silent, takes, room, draining bool
}

func (s *clusterStatus) judgeDevice(h *wire.Host, d *wire.Device, hs *hostStatus, can *hostRoom) {
	s.judgeKnown(h, d, hs)
	switch {
	case d.State == wire.DeviceState_DEVICE_STATE_DRAINING:
		can.draining = true
	case d.State != wire.DeviceState_DEVICE_STATE_IN:
	case !hs.Alive:
		can.silent = true
	case isFull(d):
		hs.In++
		s.full++
		can.takes = true
		s.worse(healthDegraded, "device %d of host %s is full and takes only repaired chunks: make "+
			"room (`moraine rm`), or add devices", d.Id, h.Id)
	default:
		hs.In++
		can.takes, can.room = true, true
	}
	if view.InService(d) {
		hs.Capacity += d.Capacity
		hs.Used += d.Used
		hs.Chunks += d.Chunks
	}
	if d.State == wire.DeviceState_DEVICE_STATE_OUT {
		s.worse(healthDegraded, "device %d of host %s is out", d.Id, h.Id)
	}
	if d.Health.GetFailing() {
		s.worse(healthDegraded, "the disk of device %d of host %s says that it is failing (%s): drain "+
			"it (`moraine device set %d draining`) and replace it", d.Id, h.Id, d.Health.Text, d.Id)
	}
}

// judgeKnown reports what is not known yet of a device whose host is up.
func (s *clusterStatus) judgeKnown(h *wire.Host, d *wire.Device, hs *hostStatus) {
	if !view.InService(d) {
		return
	}
	hs.Reported = hs.Reported && d.Reported
	if !hs.Alive {
		return
	}
	if !d.Reported {
		s.worse(healthUnknown, "it is not known yet whether chunks are missing on device %d of host "+
			"%s: the report of all its chunks is not complete", d.Id, h.Id)
	}
	if !d.Measured {
		s.worse(healthUnknown, "it is not known yet how full device %d of host %s is", d.Id, h.Id)
	}
}

// memberStatus is what is known of a metadata server.
func memberStatus(n *wire.MetadataNode) string {
	switch {
	case !n.Heard:
		return view.ServerUnknown
	case !n.Alive:
		return view.ServerDown
	}
	return view.ServerUp
}

// isFull reports whether a device takes nothing new: the last 2% of it are for repair.
func isFull(d *wire.Device) bool {
	return d.Capacity > 0 && d.Used+d.Capacity/50+moraine.DefaultChunkSize > d.Capacity
}

func (s *clusterStatus) judgeScheme(w *wire.Scheme) {
	scheme := moraine.Scheme{K: uint8(w.GetK()), M: uint8(w.GetM())}
	s.Scheme = scheme.String()
	if scheme.K == 0 {
		return
	}
	domain := "host"
	if len(s.Hosts) == 1 {
		domain = "device"
	}
	if s.up == 0 && len(s.Hosts) > 0 {
		why := "every device is full" + s.refusing()
		if s.taking == 0 {
			why = "no host takes chunks" + s.refusing()
			health := healthDegraded
			if s.unknown > 0 {
				health = healthUnknown
			}
			s.worse(health, "%s", why)
		}
		s.Survives = append(s.Survives, "nothing new can be written: "+why)
		return
	}
	if scheme.M == 0 {
		s.Survives = append(s.Survives, "new files have one copy (x1): the loss of the device is the "+
			"loss of the data")
		return
	}
	if domain == "host" && s.up < scheme.Chunks() {
		is, all := "host takes chunks", "hosts take chunks"
		if s.full > 0 {
			is, all = "host takes chunks and has room", "hosts take chunks and have room"
		}
		s.Survives = append(s.Survives, fmt.Sprintf("new files are written with less protection than "+
			"%s gives, as %s%s; each commit says with how much",
			scheme, cli.Are(s.up, is, all), s.refusing()))
		return
	}
	s.Survives = append(s.Survives, fmt.Sprintf("new files are written %s: %s may be lost at once", scheme, cli.Are(int(scheme.M), domain, domain+"s")))
}

func (s *clusterStatus) judgeStripes(c *wire.ClusterReply) {
	if c.LostStripes > 0 {
		s.worse(healthCritical, "%s fewer chunks left than are needed to read: `moraine fsck` names the files", cli.Are(int(c.LostStripes), "stripe has", "stripes have"))
	}
	if s.silent > 0 {
		s.Survives = append(s.Survives, fmt.Sprintf("chunks on %s not known to be up still count: a "+
			"stripe with a chunk on each of them survives the loss of %s than its scheme gives",
			cli.Are(s.silent, "host that is", "hosts that are"), cli.Are(s.silent, "host fewer", "hosts fewer")))
	}
	s.judgeObjects(c)
	s.judgeHealing(c.Healing)
	s.Waits = view.DescribeWaits(c.Waits)
	waiting := c.RepairQueued
	if waiting == 0 {
		if c.LostStripes == 0 && (s.unknown > 0 || c.Unreported > 0) {
			s.Survives = append(s.Survives, "it is not known yet whether every stripe has the full "+
				"protection of its scheme")
		} else if c.LostStripes == 0 && s.silent == 0 {
			s.Survives = append(s.Survives, "every stripe has the full protection of its scheme: all chunkservers have reported all their chunks")
			if c.DefaultScheme.GetK() > 1 {
				// Nothing counts them: in the metadata their scheme is x2, and they are
				// whole.
				s.Survives = append(s.Survives, "files written as copies (x2) while too few hosts were "+
					"up stay so: `moraine stat` of such a file shows degraded stripes; a copy of it "+
					"gets the full scheme")
			}
		}
		return
	}
	s.judgeWaits(waiting, c.RepairRunning)
	if s.Waits.OnlyDrained() {
		return
	}
	for spare, n := range c.StripesBySpare {
		if n > 0 {
			s.Survives = append(s.Survives, fmt.Sprintf("the weakest of them (%d) survive the loss of "+
				"%s", n, cli.Are(spare, "more host", "more hosts")))
			return
		}
	}
}

// judgeLost reports files that have lost bytes.
func (s *clusterStatus) judgeLost(files int) {
	if s.LostFiles = files; files > 0 {
		s.worse(healthCritical, "%s lost bytes: `moraine cluster lost` names the files and the bytes; "+
			"write them again, or remove them", cli.Are(files, "file has", "files have"))
	}
}

// judgeHealing reports the progress of the repair.
func (s *clusterStatus) judgeHealing(h *wire.Healing) {
	if h == nil {
		return
	}
	s.Healing = &healingStatus{Done: h.Done, Total: h.Total, PerMinute: h.PerMinute, BytesPerSec: h.BytesPerSecond,
		ETASeconds: (h.EtaMillis + 999) / 1000, Elapsed: h.ElapsedMillis / 1000, Scanning: h.Scanning}
	if h.Scanning > 0 {
		s.worse(healthDegraded, "%s still scanned for stripes to repair", cli.Are(int(h.Scanning), "device is", "devices are"))
	}
	if h.PerMinute > 0 || h.EtaMillis > 0 {
		s.Findings = append(s.Findings, fmt.Sprintf("repair: %d of %d stripes done, %d a minute, %s/s%s", h.Done, h.Total, h.PerMinute, cli.Size(h.BytesPerSecond), view.EtaOf(h)))
	}
}
