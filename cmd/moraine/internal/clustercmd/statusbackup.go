package clustercmd

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// backupsStatus is the state of the backups that the metadata leader takes by itself.
type backupsStatus struct {
	Node     string `json:"node"`
	Dir      string `json:"dir"`
	Interval uint64 `json:"interval_seconds"`
	Age      uint64 `json:"age_seconds"` // of the newest; 0: there is none
	Bytes    uint64 `json:"bytes"`       // of the newest
	Kept     uint32 `json:"kept"`
	Error    string `json:"error"` // why the last one failed
	Overdue  bool   `json:"overdue"`
}

// judgeBackups reports when the last backup was taken, and warns where it failed or is
// overdue.
func (s *clusterStatus) judgeBackups(b *wire.KeptBackups) {
	if b == nil {
		return
	}
	s.Backups = &backupsStatus{Node: b.Node, Dir: b.Dir, Interval: b.IntervalMillis / 1000, Age: uint64(max(b.AgeMillis+999, 0)) / 1000,
		Bytes: b.Bytes, Kept: b.Kept, Error: b.Error, Overdue: b.Overdue}
	last := "there is none"
	if b.AgeMillis > 0 {
		last = fmt.Sprintf("the newest is %v old", (time.Duration(b.AgeMillis) * time.Millisecond).Round(time.Second))
	}
	switch {
	case b.Error != "":
		s.worse(healthDegraded, "the last backup of the metadata failed on %s (%s; %s): make room in "+
			"--backup-dir, or take one by hand (`moraine metadata backup FILE`)", b.Node, b.Error, last)
	case b.Overdue:
		s.worse(healthDegraded, "the backup of the metadata is overdue on %s (%s): see the log of that server, or take one by hand (`moraine metadata backup FILE`)", b.Node, last)
	case b.AgeMillis > 0:
		s.Notes = append(s.Notes, fmt.Sprintf("metadata backups: %s (%s), %d kept in %s of %s", last, cli.Size(b.Bytes), b.Kept, b.Dir, b.Node))
	}
}

// judgeHorizon reports what is kept for backups, and warns where the newest backup could no
// longer restore everything.
func (s *clusterStatus) judgeHorizon(c *wire.ClusterReply) {
	s.KeptBytes, s.Horizon, s.HorizonNow = c.KeptBytes, c.BackupHorizonMillis/1000, c.BackupHorizonNowMillis/1000
	if c.BackupHorizonMillis == 0 {
		return
	}
	seconds := func(n uint64) time.Duration { return time.Duration(n) * time.Second }
	shorter := ""
	if s.HorizonNow < s.Horizon {
		shorter = fmt.Sprintf(" of %v, as full devices freed what died before", seconds(s.Horizon))
	}
	s.Notes = append(s.Notes, fmt.Sprintf("kept for backups: %s that no file names any more; a backup "+
		"restores everything if it is no older than %v%s", cli.Size(s.KeptBytes), seconds(s.HorizonNow), shorter))
	if b := s.Backups; b != nil && b.Age > s.HorizonNow {
		s.worse(healthDegraded, "the newest backup of the metadata is %v old, and what died more than "+
			"%v ago is not kept: files that were removed, written over, rewritten or evicted before "+
			"may not come back with it. Take one (`moraine metadata backup FILE`), and make room on "+
			"the devices or raise --backup-horizon",
			seconds(b.Age), seconds(s.HorizonNow))
	}
}
