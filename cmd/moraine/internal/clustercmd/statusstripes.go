package clustercmd

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
)

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
