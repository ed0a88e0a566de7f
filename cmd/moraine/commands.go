package main

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/benchcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/certcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/ckptcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/clustercmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/devcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/fsckcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/hostcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/inspectcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/jobcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/mountcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/policycmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/s3cmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/servercmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/simcmd"
	"github.com/spf13/cobra"
)

// commands lists the commands of the binary.
func commands(env *cli.Env) []*cobra.Command {
	all := []*cobra.Command{
		mountcmd.NewMountCommand(env), mountcmd.NewUmountCommand(env), ckptcmd.NewCkptCommand(env), clustercmd.NewClusterCommand(env), fsckcmd.NewFsckCommand(env), policycmd.NewPolicyCommand(env), policycmd.NewQuotaCommand(env),
		certcmd.NewCertCommand(env), inspectcmd.NewInspectCommand(env), simcmd.NewSimCommand(env), newVersionCommand(env), s3cmd.NewS3Command(env), devcmd.NewDevClusterCommand(env), devcmd.NewDemoCommand(env), benchcmd.NewBenchCommand(env),
	}
	for _, area := range [][]*cobra.Command{filecmd.FileCommands(env), hostcmd.HostCommands(env), jobcmd.JobCommands(env), servercmd.ServerCommands(env)} {
		all = append(all, area...)
	}
	return all
}
