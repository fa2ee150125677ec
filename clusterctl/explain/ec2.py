"""Signatures of messages of EC2's API, S3, the metadata service, cloud-init, package managers."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature

_ERRORS = "docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
_CLOUD_INIT = "docs.cloud-init.io/en/latest/explanation/failure_states.html"

SIGNATURES = (
    Signature(
        "ec2.capacity",
        r"InsufficientInstanceCapacity(?:.*sufficient (?P<type>\S+) capacity)?"
        r"|do not have sufficient (?P<type2>\S+) capacity|Insufficient capacity",
        "EC2 has no machine of that type free there just now",
        "another zone (the message names those that have some), time or type; a reservation "
        "(ODCR, Capacity Block); "
        "`clusterctl up --zone ZONE`",
        _ERRORS,
        mistaken_for="a quota: that is VcpuLimitExceeded",
    ),
    Signature(
        "ec2.vcpu-limit",
        r"VcpuLimitExceeded|You have requested more vCPU capacity than your current vCPU limit"
        r"|MaxSpotInstanceCountExceeded|InstanceLimitExceeded",
        "the account's quota does not allow so many machines of this family",
        "ask for more: Service Quotas, `Running On-Demand P instances` (in vCPUs); Spot has a "
        "quota of its own",
        _ERRORS,
        mistaken_for="a lack of machines",
    ),
    Signature(
        "ec2.unauthorized",
        r"UnauthorizedOperation(?:.* not authorized to perform: (?P<action2>[\w:*-]+))?"
        r"|is not authorized to perform: (?P<action>[\w:*-]+)"
        r"|AccessDenied(?:Exception)?\b(?:.* not authorized to perform: (?P<action3>[\w:*-]+))?",
        "these credentials may not do that",
        "`clusterctl iam-policy` prints what is needed; `aws sts decode-authorization-message` "
        "reads an encoded one; "
        "whose credentials they are: `aws sts get-caller-identity`",
        _ERRORS,
    ),
    Signature(
        "ec2.credentials-missing",
        r"Unable to locate credentials|NoCredentialsError|[Cc]ould not (?:find|load) credentials"
        r"|NoCredentialProviders|Unable to load AWS credentials",
        "there are no AWS credentials here: no instance profile, or a container that cannot "
        "reach the metadata "
        "service (hop limit 1)",
        "clusterctl up NAME --instance-profile new; hop limit 2 for containers; AWS_PROFILE or "
        "`aws configure` elsewhere",
        "botocore: credentials.py",
    ),
    Signature(
        "ec2.bad-image",
        r"InvalidAMIID\.\w+|The image id '\[(?P<image>ami-\w+)\]' does not exist"
        r"|Not authorized for images: \[(?P<image2>ami-\w+)\]",
        "the image is not in this region, or is not shared with the account any more",
        "leave --image out: `clusterctl up` finds the newest; images have another id in each "
        "region",
        _ERRORS,
    ),
    Signature(
        "ec2.clock",
        r"Signature (?:expired|not yet current): (?P<here>\w+) is (?:now |still )?(?:earlier|later)"
        r" than (?P<there>\w+)",
        "this machine's clock is wrong: it signed the call at {here}, and EC2's limit was {there}",
        "`timedatectl`; chrony or systemd-timesyncd has to run",
        _ERRORS,
        mistaken_for="wrong credentials",
    ),
    Signature(
        "ec2.credentials-expired",
        r"ExpiredToken|RequestExpired|The security token included in the request is (?:expired"
        r"|invalid)|InvalidClientTokenId|AuthFailure\b|token (?:has|is) expired"
        r"|SignatureDoesNotMatch",
        "the AWS credentials are expired or wrong, or this machine's clock is",
        "log in again (`aws sso login`); `timedatectl`; AWS_SESSION_TOKEN belongs to its key",
        _ERRORS,
    ),
    Signature(
        "ec2.throttled",
        r"RequestLimitExceeded|ThrottlingException|Throttling: Rate exceeded|\(Throttling\)",
        "too many calls to the EC2 API in a short time, of the whole account",
        "wait and again, with growing gaps; fewer at a time",
        _ERRORS,
        severity=Severity.WARNING,
    ),
    Signature(
        "ec2.opt-in",
        r"OptInRequired|PendingVerification|is not subscribed to this service"
        r"|In order to use this AWS Marketplace product you need to accept terms",
        "the account is not enabled for this region, service or image",
        "accept the image's terms, or enable the region; a new account is verified within hours",
        _ERRORS,
    ),
    Signature(
        "ec2.bad-parameter",
        r"InvalidParameterCombination|InvalidParameterValue\b"
        r"|The requested configuration is currently not supported|\(Unsupported\) when calling"
        r"|Your requested instance type \((?P<type>[\w.]+)\) is not supported in your requested"
        r" Availability Zone",
        "EC2 refuses this combination: usually the type is not offered in that zone, or the "
        "image is of another architecture",
        "another zone (the message lists those that have it); an image of the type's architecture",
        _ERRORS,
    ),
    Signature(
        "ec2.not-found",
        r"Invalid(?P<what>KeyPair|Group|SubnetID|SecurityGroup|SecurityGroupID|VpcID|Snapshot"
        r"|Volume|InstanceID|AllocationID|PlacementGroup)\.(?:NotFound|Unknown|Malformed)",
        "a {what} that is named does not exist in this region and account",
        "the region, the account (`aws sts get-caller-identity`), and whether it was removed",
        _ERRORS,
    ),
    Signature(
        "ec2.dependency",
        r"DependencyViolation|InvalidGroup\.InUse|resource \S+ has a dependent object",
        "something still uses what is to be removed (usually an interface)",
        "wait until the instances are gone; `clusterctl gc` finds what is left over",
        _ERRORS,
    ),
    Signature(
        "ec2.volume-limit",
        r"VolumeLimitExceeded|MaxIOPSLimitExceeded|AddressLimitExceeded|VpcLimitExceeded"
        r"|SecurityGroupLimitExceeded",
        "a quota of the account is reached",
        "Service Quotas; `clusterctl gc` removes what is left over",
        _ERRORS,
    ),
    Signature(
        "ec2.cfn-signal",
        r"Failed to receive \d+ resource signal\(s\) within the specified duration"
        r"|WaitCondition timed out",
        "CloudFormation waited in vain for a node to say that it is set up: its user data failed "
        "or could not reach AWS",
        "/var/log/cloud-init-output.log and cfn-init.log on that node (keep it: "
        "--disable-rollback); its way to the internet",
        "aws/aws-parallelcluster#2105",
        role=Role.SYMPTOM,
    ),
    Signature(
        "ec2.spot",
        r"Server\.SpotInstance(?:Termination|Shutdown)|instance-terminated-no-capacity"
        r"|spot/instance-action|SpotMaxPriceTooLow|capacity-not-available"
        r"|\"action\": ?\"terminate\", ?\"time\"",
        "EC2 takes a Spot instance back (or does not give one)",
        "restart from the last checkpoint; on-demand or a reservation for what must not be "
        "interrupted",
        "docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-interruptions.html",
    ),
    Signature(
        "ec2.state-reason",
        r"Client\.(?P<reason>InternalError|VolumeLimitExceeded|InvalidSnapshot\.NotFound"
        r"|InstanceInitiatedShutdown|UserInitiatedShutdown|InvalidParameterValue)"
        r"|Server\.(?:InternalError|ScheduledStop)",
        "this is EC2's reason why the instance stopped or did not start. Client.InternalError is "
        "usually a volume whose KMS key may not be used. With InstanceInitiatedShutdown or "
        "UserInitiatedShutdown a command stopped it, on the instance or from outside",
        "`clusterctl status NAME`; the permissions of the key; for Server.InternalError launch "
        "again",
        "docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html",
    ),
    Signature(
        "ec2.imds",
        r"IMDS endpoint returned a 403|169\.254\.169\.254[^\n]*(?:timed out|timeout|401|403"
        r"|Connection refused|unreachable|Max retries)|(?:Giving up on|No) (?:Ec2 )?(?:md"
        r"|metadata)[^\n]*after \d+ seconds|Calling 'http://169\.254\.169\.254[^']*' failed",
        "the instance's metadata service is off, wants a token (IMDSv2), or is not reached from "
        "a container (hop limit)",
        "instance metadata options: endpoint enabled, hop limit 2 for containers; a client that "
        "knows IMDSv2",
        "canonical/cloud-init: sources/DataSourceEc2.py",
    ),
    Signature(
        "s3.slow-down",
        r"SlowDown|Please reduce your request rate|\(503\) when calling|503 Slow Down",
        "S3 wants fewer requests a second for that prefix",
        "fewer workers, longer gaps; the data under several prefixes; larger files",
        "docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html",
    ),
    Signature(
        "s3.absent",
        r"An error occurred \((?P<code>404|NoSuchKey|NoSuchBucket)\)"
        r" when calling the (?P<call>\w+) operation",
        "what {call} asks for is not there: {code}",
        "the bucket's name and the whole key; `aws s3 ls s3://BUCKET/PREFIX` shows what is there. "
        "Without s3:ListBucket S3 would say 403",
        "docs.aws.amazon.com/AmazonS3/latest/API/API_HeadObject.html",
    ),
    Signature(
        "s3.denied",
        r"An error occurred \((?P<code>403|AccessDenied|InvalidAccessKeyId|PermanentRedirect"
        r"|AuthorizationHeaderMalformed)\) when calling the (?P<call>\w+) operation",
        "S3 (or another service) refuses {call}: {code}",
        "the bucket's name and region, the path, and what the instance profile may (s3:GetObject "
        "on the objects, "
        "s3:ListBucket on the bucket)",
        "docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html",
    ),
    Signature(
        "cloud-init.no-header",
        r"Unhandled non-multipart \((?P<type>[\w/-]+)\) userdata",
        "cloud-init does not know the user data: they lack `#!` or `#cloud-config` as their "
        "first line (or are encoded twice)",
        "the header in the very first line, with no blank before it",
        "canonical/cloud-init: cloudinit/handlers/__init__.py",
    ),
    Signature(
        "cloud-init.yaml",
        r"Failed loading yaml blob|Failed at merging in cloud config part"
        r"|Invalid cloud-config provided|Cloud config schema (?:errors|deprecations)"
        r"|cloud-config failed schema validation|Failed to parse yaml",
        "the user data (`#cloud-config`) are no valid YAML or have keys that cloud-init does not "
        "know",
        "`cloud-init schema --system` names the line; the indentation, tabs, quotes around "
        "values with a colon",
        "canonical/cloud-init: cloudinit/util.py, config/schema.py",
    ),
    Signature(
        "cloud-init.script",
        r"Failed to run module scripts[-_]user|Running module scripts[-_]user"
        r"|Failed running (?P<path>/var/lib/cloud/instance/scripts/\S+) \[(?P<status>-?\d+)\]"
        r"|Runparts: \d+ failures"
        r"|Command: \['(?P<script>/var/lib/cloud/instance/scripts/[^']+)'\]",
        "a script of the user data ended with an error; the log of its output says which command",
        "/var/log/cloud-init-output.log on that host, from the script's first line on",
        _CLOUD_INIT,
        role=Role.SYMPTOM,
        mistaken_for="a fault of cloud-init's",
    ),
    Signature(
        "cloud-init.runcmd",
        r"Failed to (?:shellify|run module runcmd|run runcmd)"
        r"|Failed to run module (?:package[-_]update[-_]upgrade[-_]install)"
        r"|packages? .*failed to install|Failed to install packages",
        "a command or package of the user data failed",
        "/var/log/cloud-init-output.log on that host: apt's or the command's own words",
        _CLOUD_INIT,
        role=Role.SYMPTOM,
    ),
    Signature(
        "cloud-init.module",
        r"Failed to run module (?P<module>[\w-]+)|Running module (?P<name>[\w-]+) \(.*\) failed"
        r"|Running (?:mod|module) (?P<mod>[\w-]+)[^\n]*failed",
        "a step of cloud-init failed",
        "/var/log/cloud-init.log (its traceback) and /var/log/cloud-init-output.log on that host",
        _CLOUD_INIT,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "cloud-init.no-datasource",
        r"No (?:instance )?(?:datasource|data source) found"
        r"|Did not find any data source, searched classes|DataSourceNotFoundException"
        r"|Datasource DataSourceNone|Used fallback datasource",
        "cloud-init found no source of its data: the metadata service is off or the network came "
        "late",
        "instance metadata options: endpoint enabled; the network's state at boot",
        "canonical/cloud-init: cloudinit/sources/__init__.py",
    ),
    Signature(
        "cloud-init.status",
        r"status: (?:error|degraded)(?:\s|$)|boot_status_code: .*(?:error)"
        r"|cloud-final\.service: (?:Main process exited|Failed)"
        r"|Failed to start (?:Execute cloud user/final scripts|cloud-final)",
        "cloud-init has ended with an error",
        "`cloud-init status --long`; /var/log/cloud-init-output.log",
        _CLOUD_INIT,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "apt.lock",
        r"Could not get lock (?P<path>/var/\S+?)[\.:]? |Could not get lock /var/lib/(?:dpkg|apt)"
        r"|Unable to (?:acquire|lock) the (?:dpkg frontend lock|administration directory)"
        r"|Waiting for cache lock",
        "another package manager is at work: usually unattended-upgrades after a boot",
        "apt-get -o DPkg::Lock::Timeout=300; or wait for `cloud-init status --wait` and apt-daily",
        "bugs.launchpad.net; man apt-get",
    ),
    Signature(
        "apt.interrupted",
        r"dpkg was interrupted, you must manually run",
        "an installation was cut off",
        "sudo dpkg --configure -a",
        "dpkg",
    ),
    Signature(
        "apt.hash",
        r"Hash Sum mismatch|File has unexpected size|Mirror sync in progress|: BADSIG [0-9A-F]+",
        "a mirror was in the middle of its renewal, or a proxy holds old files",
        "apt-get update again in some minutes; rm -rf /var/lib/apt/lists/*",
        "Debian/apt: apt-pkg/acquire-item.cc",
    ),
    Signature(
        "apt.not-valid-yet",
        r"is not valid yet \(invalid for another (?P<time>[^)]+)\)"
        r"|Release file for \S+ is not valid yet",
        "this host's clock is behind",
        "chrony or `timedatectl set-ntp true`, then again",
        "Debian/apt: apt-pkg/acquire-item.cc",
    ),
    Signature(
        "apt.expired",
        r"Release file for \S+ is expired",
        "the repository's index is too old: a dead mirror, or a clock that is ahead",
        "another mirror; `timedatectl`",
        "Debian/apt: apt-pkg/acquire-item.cc",
    ),
    Signature(
        "apt.no-release",
        r"The repository '(?P<repo>[^']+)' (?:does not have a|no longer has a) Release file",
        "the repository {repo} has nothing for this distribution's release (it has ended, or the "
        "address is wrong)",
        "the line in /etc/apt/sources.list.d; old-releases.ubuntu.com for ended ones",
        "Debian/apt: apt-pkg/acquire-item.cc",
    ),
    Signature(
        "apt.signature",
        r"The following signatures (?:couldn't be verified|were invalid)[^\n]*"
        r"|NO_PUBKEY (?P<key>\w+)|EXPKEYSIG (?P<expired>\w+)|repository '[^']+' is not signed",
        "the repository's key is not known here, or has expired (NVIDIA changed its in April 2022)",
        "install the repository's new key (cuda-keyring for NVIDIA's)",
        "developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key",
    ),
    Signature(
        "apt.held",
        r"you have held broken packages|The following packages have unmet dependencies"
        r"|Unable to correct problems",
        "packages of different sources or versions exclude each other, or are held",
        "the lines `Depends:` after it; `apt-mark showhold`; versions of one repository",
        "Debian/apt: apt-pkg/algorithms.cc",
    ),
    Signature(
        "apt.unlocatable",
        r"E: Unable to locate package (?P<package>\S+)"
        r"|E: Package '(?P<package2>[^']+)' has no installation candidate"
        r"|E: Version '[^']+' for '(?P<package3>[^']+)' was not found",
        "no repository has {package}: the lists are old, or the name or release is another",
        "apt-get update first; the name for this release",
        "Debian/apt",
    ),
    Signature(
        "apt.fetch",
        r"E: Failed to fetch (?P<url>\S+)|E: Unable to fetch some archives"
        r"|Some index files failed to download",
        "a package or a list could not be fetched",
        "the text behind it; the way to the internet (NAT, proxy); apt-get update again",
        "Debian/apt",
        role=Role.SYMPTOM,
    ),
    Signature(
        "apt.sub-process",
        r"E: Sub-process /usr/bin/dpkg returned an error code"
        r"|Errors were encountered while processing"
        r"|dpkg: error processing package (?P<package>\S+)",
        "a package could not be set up",
        "the first error above: often dkms (kernel headers) or a full disk",
        "dpkg",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "dkms.headers",
        r"[Kk]ernel headers for (?:the )?(?:target )?kernel (?P<kernel>\S+) (?:cannot"
        r"|at) (?:be found|/\S+ cannot be found)"
        r"|Unable to find the kernel source tree for the currently running kernel"
        r"|kernel headers .{0,80}cannot be found"
        r"|Your kernel headers for kernel (?P<running>\S+) cannot be found",
        "the headers of the running kernel are not there, so the driver's module is not built: "
        "no GPU or EFA after the next boot",
        "install linux-headers-$(uname -r) (kernel-devel-$(uname -r)), and the driver again",
        "dell/dkms: dkms.in",
    ),
    Signature(
        "dkms.build",
        r"Bad return status for module build on kernel: ?(?P<kernel>\S*)"
        r"|ERROR: An error occurred while performing the step: \"Building kernel modules\""
        r"|The kernel module failed to (?:build|load)",
        "the driver's module could not be built for this kernel: headers or compiler are missing "
        "or do not fit",
        "the make.log that the line names; a driver that knows this kernel; headers of the same "
        "kernel",
        "dell/dkms: dkms.in",
    ),
    Signature(
        "dnf.error",
        r"Error: Unable to find a match: (?P<package>.+)|No package (?P<name>\S+) available"
        r"|Cannot find a valid baseurl for repo|All mirrors were tried"
        r"|Failed to download metadata for repo '(?P<repo>[^']+)'",
        "dnf or yum finds no such package, or reaches no mirror",
        "the name for this distribution; the way to the internet (NAT, or an S3 endpoint for "
        "Amazon Linux)",
        "rpm-software-management/dnf",
    ),
    Signature(
        "pip.no-version",
        r"No matching distribution found for (?P<package>\S+)"
        r"|Could not find a version that satisfies the requirement (?P<package2>\S+)",
        "pip finds no {package} for this Python, this machine, or at that index",
        "`python --version` against what the package supports (tensorflow 1 ended with 3.7); the "
        "index and the network",
        "pip",
    ),
    Signature(
        "pip.build",
        r"Failed building wheel for (?P<package>[\w.-]+)|Failed to build (?P<name>[\w.-]+)"
        r"|error: subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure",
        "a package could not be built: the compiler's or setup's own error is above",
        "the first `error` above it",
        "pip",
        role=Role.CONSEQUENCE,
    ),
)
