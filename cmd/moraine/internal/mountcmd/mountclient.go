package mountcmd

import (
	"context"
	"errors"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/transport"
)

// mountClient is a mount's client, with the server of its metrics.
type mountClient struct {
	*cli.Connection
	admin   *serve.Admin // nil: none
	metrics *fuse.Metrics
}

// dialForMount connects, and opens the endpoint for metrics where a flag names one.
func dialForMount(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, cfg client.Config, log *slog.Logger) (*mountClient, error) {
	hosts := loc.Hosts
	if hosts == "" {
		hosts = env.Global.Endpoint
	}
	if cfg.Metadata = address.SplitEndpoint(hosts); len(cfg.Metadata) == 0 {
		return nil, cli.UsageError("no cluster is named: name its metadata servers with --endpoint " +
			"(MORAINE_ENDPOINT), or write moraine://HOST/PATH")
	}
	sec, err := env.Security()
	if err != nil {
		return nil, err
	}
	reg := serve.NewRegistry()
	m := &mountClient{metrics: fuse.NewMetrics(reg)}
	if o.adminListen != "" {
		if m.admin, err = serve.ListenAdmin(o.adminListen, reg, func() error { return nil }); err != nil {
			return nil, err
		}
	}
	m.Connection, err = cli.Connect(ctx, sec, cfg, transport.PoolDeps{Log: log, Metrics: transport.NewMetrics(reg)},
		client.Deps{Log: log, Metrics: client.NewMetrics(reg)})
	if err != nil && m.admin != nil {
		_ = m.admin.Close()
	}
	return m, err
}

// run runs serve, and the endpoint for metrics beside it for the same time.
func (m *mountClient) run(ctx context.Context, serve func(context.Context) error) error {
	if m.admin == nil {
		return serve(ctx)
	}
	adminCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- m.admin.Run(adminCtx) }()
	err := serve(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// close ends the session. If the service cannot be reached, the session expires there.
func (m *mountClient) close() error {
	if err := m.Connection.Close(); err != nil && moraine.KindOf(err) != moraine.Timeout {
		return err
	}
	return nil
}
