package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
)

// certificateLook is how often a server checks whether its certificate expires soon.
const certificateLook = 12 * time.Hour

// WatchCertificate logs when a server's certificate expires, from 30 days before.
func WatchCertificate(sec cli.Security, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if sec.Identity == nil {
			<-ctx.Done()
			return nil
		}
		tick := time.NewTicker(certificateLook)
		defer tick.Stop()
		for {
			warnOfExpiry(log, sec.Identity.Claims().Node, sec.Identity.NotAfter(), time.Now())
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

// warnOfExpiry logs a line where a certificate expires soon.
func warnOfExpiry(log *slog.Logger, node string, at, now time.Time) {
	switch left := at.Sub(now); {
	case left <= view.CertificateLeast:
		log.Error("the certificate expires within 7 days: renew it with `moraine cert renew`", "node", node, "expires", at.UTC(), "left", left.Round(time.Hour))
	case left <= view.CertificateWarning:
		log.Warn("the certificate expires within 30 days: renew it with `moraine cert renew`", "node", node, "expires", at.UTC(), "left", left.Round(time.Hour))
	}
}
