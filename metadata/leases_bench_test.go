package metadata_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/transport/wire"
)

// BenchmarkLeases runs a thousand sessions with a thousand leases each and open polls for recalls.
// One operation is one second of heartbeats: a renewal of each session's leases. It prints the
// memory and the CPU time of the leases (of all three servers, of which only the leader has work).
func BenchmarkLeases(b *testing.B) {
	const sessions, leases = 1000, 1000
	s, ctx := benchCluster(b)
	do := func(req *wire.MetaRequest) *wire.MetaResponse {
		routed(req)
		resp, err := s.Do(ctx, req)
		if err != nil {
			b.Error(err)
		}
		return resp
	}
	open := func(n int) uint64 {
		nonce := make([]byte, 16)
		nonce[0], nonce[1] = byte(n), byte(n>>8)
		return do(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: nonce, Leases: true}}}).GetSession().GetSession()
	}
	ids := make([]uint64, sessions)
	each := func(fn func(i int)) {
		var g errgroup.Group
		g.SetLimit(64)
		for i := range sessions {
			g.Go(func() error { fn(i); return nil })
		}
		_ = g.Wait()
	}
	each(func(i int) { ids[i] = open(i) })
	setup := open(sessions)
	dirs := make([]uint64, 2*leases)
	for i := range dirs {
		dirs[i] = do(&wire.MetaRequest{Session: setup, Number: uint64(i + 1), AckedBelow: uint64(i + 1), Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: fmt.Sprint(i), Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755}}}).GetEntry().GetAttr().GetInode()
	}
	request := func(i int, l *wire.Leases) *wire.LeasesReply {
		l.Epoch = 1
		return do(&wire.MetaRequest{Session: ids[i], Op: &wire.MetaRequest_Leases{Leases: l}}).GetLeases()
	}
	before := heap()
	// They return, as after a failover, with their leases.
	exact := request(0, &wire.Leases{Begin: true}).Exact
	each(func(i int) {
		if i == 0 {
			return
		}
		held := make([]uint64, leases)
		for n := range held {
			held[n] = dirs[(i+n)%len(dirs)]
		}
		if r := request(i, &wire.Leases{Begin: true, Exact: exact, Held: held}); r.GetEnded() || len(r.GetRecalls()) > 0 {
			b.Errorf("session %d does not hold its leases: %v", i, r)
		}
	})
	held := heap() - before
	for i := range sessions {
		go func() { // they end with the benchmark
			_, _ = s.Do(ctx, &wire.MetaRequest{Session: ids[i], Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{Epoch: 1, WaitMillis: 25_000}}})
		}()
	}
	cpu, seconds := cpuSeconds(), 0
	b.ResetTimer()
	for b.Loop() {
		seconds++
		each(func(i int) { request(i, &wire.Leases{Renew: true}) })
	}
	b.StopTimer()
	b.ReportMetric(held/1e6, "MB")
	b.ReportMetric(held/((sessions-1)*leases), "B/lease")
	b.ReportMetric((cpuSeconds()-cpu)/float64(seconds)*1000, "cpu-ms/s")
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func cpuSeconds() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}
