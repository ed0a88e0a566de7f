package benchcmd

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
)

func printLines(env *cli.Env, lines []bench.Line) error {
	return cli.List(env, lines, table.Row{"name", "value", "unit", "limit", "of", "ratio", "cpu-s/GB (/Mop)", "device bytes", "syncs"}, func(l bench.Line) table.Row {
		return table.Row{l.Name, fmt.Sprintf("%.4g", l.Value), l.Unit, fmt.Sprintf("%.4g", l.Limit), l.LimitName,
			fmt.Sprintf("%.2f", l.Ratio), fmt.Sprintf("%.2f", l.CPU), cli.Size(l.DeviceBytes), l.Syncs}
	})
}
