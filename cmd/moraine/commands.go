package main

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/agentcmd"
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
	"github.com/morainefs/moraine/cmd/moraine/internal/snapcmd"
	"github.com/spf13/cobra"
)

// commands lists the commands of the binary.
func commands(env *cli.Env) []*cobra.Command {
	all := []*cobra.Command{
		agentcmd.NewAgentCommand(env), benchcmd.NewBenchCommand(env), certcmd.NewCertCommand(env), ckptcmd.NewCkptCommand(env), clustercmd.NewClusterCommand(env),
		devcmd.NewDemoCommand(env), devcmd.NewDevClusterCommand(env), fsckcmd.NewFsckCommand(env), inspectcmd.NewInspectCommand(env),
		mountcmd.NewMountCommand(env), mountcmd.NewUmountCommand(env), mountcmd.NewStatsCommand(env), mountcmd.NewProfileCommand(env),
		policycmd.NewPolicyCommand(env), policycmd.NewQuotaCommand(env),
		s3cmd.NewS3Command(env), simcmd.NewSimCommand(env), snapcmd.NewSnapshotCommand(env), newVersionCommand(env),
	}
	for _, area := range [][]*cobra.Command{filecmd.Commands(env), hostcmd.Commands(env), jobcmd.Commands(env), servercmd.Commands(env)} {
		all = append(all, area...)
	}
	return all
}
