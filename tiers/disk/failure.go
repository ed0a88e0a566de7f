package disk

import (
	"log/slog"
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// failure is the error that took the device out of service, if one did. All parts
// share it. It needs no lock: only the first error counts.
type failure struct {
	cfg  *Config
	deps *Deps
	log  *slog.Logger

	first  atomic.Pointer[moraine.Error]
	failed chan struct{} // closed at the first failure
}

// err returns the failure, or nil while the device is in service.
func (f *failure) err() error {
	if e := f.first.Load(); e != nil {
		return e
	}
	return nil
}

// fail takes the device out of service for good, and returns the IOError that every
// later call returns. After a failed write or sync the contents of the medium are
// unknown. The kernel reports such an error only once, so a retry could succeed
// falsely.
func (f *failure) fail(op string, cause error) error {
	e := &moraine.Error{Op: op, Ref: f.cfg.Dir, Kind: moraine.IOError, Err: cause}
	if f.first.CompareAndSwap(nil, e) {
		close(f.failed)
		f.deps.Metrics.Failures.Inc()
		f.log.Error("device taken out of service", "op", op, "err", cause)
	}
	return f.err()
}
